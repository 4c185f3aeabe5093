"""Parsing of the commands in the documents, and execution of those that need no cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

from embedded import build
from embedded.errors import Failure
from embedded.progress import Progress
from verify import pages
from verify.runner import REPOSITORY

PAGE = """
Text with `kubectl get` in it.

1. A step.

   ```sh
   # A comment.
   kubectl drain web \\
     --force   # and why

   (cd deploy && for image in a b; do
     kustomize edit set image $image
   done)
   kubectl create -f - <<'EOF'
   name: web   # stays
   EOF
   kubectl get x -o jsonpath='{.data.ca\\.crt}' | base64 -d
   ```

```
$ kubectl drydock drain web --reason "new disk"   # shows it
web  emptying
```

```yaml
kubectl: none
```
"""


class Read(unittest.TestCase):
    def commands(self) -> list[pages.Command]:
        return list(pages.commands("page.md", PAGE))

    def test_commands_have_the_lines_that_belong_to_each(self) -> None:
        self.assertEqual(
            [(one.line, one.text) for one in self.commands()],
            [
                (8, "kubectl drain web \\\n  --force   # and why"),
                (11, "(cd deploy && for image in a b; do\n  kustomize edit set image $image\ndone)"),
                (14, "kubectl create -f - <<'EOF'\nname: web   # stays\nEOF"),
                (17, "kubectl get x -o jsonpath='{.data.ca\\.crt}' | base64 -d"),
                (21, 'kubectl drydock drain web --reason "new disk"   # shows it'),
            ],
        )

    def test_arguments_are_those_of_a_shell(self) -> None:
        drain, loop, create, pipe, transcript = self.commands()
        self.assertEqual(drain.words, ["kubectl", "drain", "web", "--force"])
        self.assertEqual((create.words, create.input), (["kubectl", "create", "-f", "-"], "name: web   # stays\n"))
        self.assertEqual(pipe.words, ["kubectl", "get", "x", "-o", "jsonpath={.data.ca\\.crt}", "|", "base64", "-d"])
        self.assertEqual(transcript.words[-2:], ["--reason", "new disk"])
        self.assertEqual([one.is_plain for one in self.commands()], [True, False, False, False, True])

    def test_command_without_an_end_is_an_error(self) -> None:
        for lines in ("for a in b; do", "kubectl get \\", "kubectl create -f - <<EOF\na: 1"):
            with self.assertRaisesRegex(Failure, "has no end"):
                list(pages.commands("page.md", f"```sh\n{lines}\n```\n"))

    def test_names_of_a_page_are_replaced_as_a_whole(self) -> None:
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(pages, "REPOSITORY", Path(folder)):
            page = "page.md"
            (Path(folder) / page).write_text("```sh\nkubectl patch vm/web web-a --name=web\n```\n")
            replaced = {"web": "own"}
            self.assertEqual(pages.script(page, "kubectl patch", replaced), "kubectl patch vm/own web-a --name=own")
            self.assertEqual(pages.arguments(page, "kubectl patch", replaced), ["patch", "vm/own", "web-a", "--name=own"])
            for beginning, name in (("kubectl patch", "none"), ("kubectl get", "web")):
                with self.assertRaises(Failure):
                    pages.script(page, beginning, {name: "own"})


class Images(unittest.TestCase):
    """Commands that the pages run before anything is installed on a cluster."""

    REGISTRY = "registry.example:5000"

    def kustomized(self, script: str, folder: str) -> set[str]:
        """Return the images in the manifests of a folder, after a command of a page has set them in a copy of `deploy`."""
        kustomize = build.kustomize(Progress())
        with tempfile.TemporaryDirectory() as made:
            shutil.copytree(REPOSITORY / "deploy", Path(made) / "deploy")
            environment = {"PATH": f"{Path(kustomize).parent}:/usr/bin:/bin", "HOME": made}
            subprocess.run(["bash", "-ec", script], cwd=made, env=environment, check=True, capture_output=True)
            argv = [kustomize, "build", folder]
            built = subprocess.run(argv, cwd=made, check=True, capture_output=True, text=True).stdout
        return set(re.findall(r"[\w./:-]*/drydock/(?:agent|controller|launcher|console)\b[\w.:@-]*", built))

    def test_images_are_those_of_the_named_registry(self) -> None:
        own = {"REGISTRY": self.REGISTRY}
        for script, folder, names in (
            (pages.script("deploy/README.md", "(cd deploy && for image", own), "deploy", ("agent", "controller", "launcher")),
            (pages.script("deploy/docs/uninstall.md", "(cd deploy/uninstall", own), "deploy/uninstall", ("agent", "controller")),
            (pages.script("deploy/docs/console.md", "(cd deploy/console", own), "deploy/console", ("console",)),
        ):
            expected = {f"{self.REGISTRY}/drydock/{name}:dev" for name in names}
            self.assertEqual(self.kustomized(script, folder), expected, folder)

    def test_builds_are_of_packages_and_recipes_that_exist(self) -> None:
        manifests = [tomllib.loads(path.read_text()) for path in REPOSITORY.glob("*/**/Cargo.toml") if "target" not in path.parts]
        packages = {manifest["package"]["name"] for manifest in manifests}
        for page, beginning in (
            ("deploy/README.md", "cargo build"),
            ("deploy/docs/console.md", "cargo build"),
            ("deploy/docs/kubectl-drydock.md", "cargo build"),
        ):
            words = pages.command(page, beginning).words
            named = {words[at + 1] for at, word in enumerate(words) if word == "-p"}
            self.assertTrue(named and named <= packages, (page, named - packages))
        images = REPOSITORY / "deploy" / "images"
        listed = re.search(r"for image in ([\w ]+);", pages.command("deploy/README.md", "for image in base").text)
        assert listed is not None
        self.assertEqual([name for name in listed[1].split() if not (images / name / "Containerfile").exists()], [])
        recipe = pages.command("deploy/docs/console.md", "podman build").words
        self.assertTrue((REPOSITORY / recipe[recipe.index("-f") + 1]).exists())


if __name__ == "__main__":
    unittest.main()
