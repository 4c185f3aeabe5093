"""Decision whether a command in the documents counts as executed."""

import unittest

from verify import pages
from verify.page_commands import ANY, EXEMPT, Call, python_calls, python_reads, rust_calls, rust_reads, unexecuted

PAGE = """
```sh
kubectl taint nodes worker-1 kubevirt.io/drain-
kubectl get vmim -o wide
podman build .
kubectl create -f - <<EOF
name: web
EOF
```
"""


class Calls(unittest.TestCase):
    def test_names_alone_may_differ(self) -> None:
        for words, arguments, expected in (
            ("kubectl uncordon worker-1", ("kubectl", "uncordon", ANY), True),
            ("kubectl uncordon worker-1", ("kubectl", "uncordon", "own"), True),
            ("kubectl uncordon worker-1", ("kubectl", "uncordon", "--all"), False),
            ("kubectl uncordon worker-1", ("kubectl", "cordon", ANY), False),
            ("kubectl delete vm/web", ("kubectl", "delete", f"vm/{ANY}"), True),
            ("kubectl delete vm/web", ("kubectl", "delete", f"vmi/{ANY}"), False),
            ("kubectl get vmim", ("kubectl", "get", ANY), False),
            ("kubectl get vmim", ("kubectl", "get", "vmim", "-o", "wide"), True),
            ("kubectl get vmim -w", ("kubectl", "get", "vmim"), False),
        ):
            self.assertEqual(Call(arguments).executes(words.split()), expected, (words, arguments))

    def test_calls_of_rust_have_the_texts(self) -> None:
        text = """
            cluster.kubectl(&["get", "vmi", &name, "-o",
                "jsonpath={.a[?(@.b==\\"c\\")]}"])?;
            let (exit, _) = run(&cluster, &["plan", node])?;
            other(&["get"]);
        """
        self.assertEqual(
            [call.arguments for call in rust_calls(text)],
            [("kubectl", "get", "vmi", ANY, "-o", 'jsonpath={.a[?(@.b=="c")]}'), ("kubectl", "drydock", "plan", ANY)],
        )

    def test_calls_of_python_have_texts_and_constants(self) -> None:
        text = 'SPACE = "own"\nmade.kubectl("-n", SPACE, "get", f"vm/{name}", *more)\nstage.plugin("plan", here)\nother("get")\n'
        self.assertEqual(
            [call.arguments for call in python_calls(text)],
            [("kubectl", "-n", "own", "get", f"vm/{ANY}", ANY), ("kubectl", "drydock", "plan", ANY)],
        )

    def test_commands_that_are_read_are_found(self) -> None:
        rust = 'cluster.documented(\n    "a.md",\n    "kubectl get \\"x\\"",\n    &[],\n)?; cluster.documented(page, "kubectl", &[]);'
        self.assertEqual(rust_reads(rust), {("a.md", 'kubectl get "x"')})
        python = 'PAGE = "a.md"\nshell(pages.script(PAGE, "for kind", {"a": b}))\npages.arguments("b.md", "kubectl get")\ntext.script(x, "y")\n'
        self.assertEqual(python_reads(python), {("a.md", "for kind"), ("b.md", "kubectl get")})


class Unexecuted(unittest.TestCase):
    FOUND = list(pages.commands("a.md", PAGE))

    def wrong(self, *calls: tuple[str, ...], reads: set[tuple[str, str]] = frozenset(), exempt: tuple = ()) -> list[str]:  # type: ignore[assignment]
        return unexecuted(self.FOUND, [Call(("kubectl", *call)) for call in calls], reads, exempt)

    def test_each_command_is_read_called_or_exempt(self) -> None:
        calls = [("taint", "nodes", ANY, "kubevirt.io/drain-"), ("get", "vmim", "-o", "wide")]
        exempt = (("a.md", "podman", "there is none"),)
        self.assertEqual(self.wrong(*calls, reads={("a.md", "kubectl create")}, exempt=exempt), [])
        self.assertEqual(
            self.wrong(),
            [
                "a.md:3: nothing executes kubectl taint nodes worker-1 kubevirt.io/drain-",
                "a.md:4: nothing executes kubectl get vmim -o wide",
                "a.md:5: nothing executes podman build .",
                "a.md:6: nothing executes kubectl create -f - <<EOF",
            ],
        )

    def test_input_of_a_command_is_in_no_call(self) -> None:
        wrong = self.wrong(("create", "-f", "-"))
        self.assertIn("a.md:6: nothing executes kubectl create -f - <<EOF", wrong)

    def test_reasons_and_reads_without_a_command_are_wrong(self) -> None:
        exempt = (("a.md", "kubectl get", "x"), ("a.md", "docker", "x"))
        wrong = self.wrong(("get", "vmim", "-o", "wide"), reads={("a.md", "kubectl delete"), ("a.md", "kubectl")}, exempt=exempt)
        self.assertEqual(
            [line for line in wrong if "nothing executes" not in line],
            [
                "a.md: a test requires exactly one command that begins with kubectl; found 3",
                "a.md: a test requires exactly one command that begins with kubectl delete; found 0",
                "a.md: EXEMPT has an unnecessary entry for kubectl get",
                "a.md: EXEMPT has an unnecessary entry for docker",
            ],
        )

    def test_reasons_are_texts(self) -> None:
        self.assertEqual([entry for entry in EXEMPT if len(entry) != 3 or not all(entry)], [])


if __name__ == "__main__":
    unittest.main()
