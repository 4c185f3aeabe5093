//! Completion of command lines: scripts for shells, and the program that kubectl runs to complete plugin commands.
//!
//! ```text
//!  Tab after `kubectl drydock …` ─▶ kubectl ─▶ kubectl_complete-drydock WORDS ─▶ kubectl-drydock __complete -- WORDS
//!                                                                                 └▶ one candidate a line, then `:directive`
//! ```
//!
//! The protocol is defined in KEP-2379, "Shell Completion Support". The directives are those of Cobra.

mod candidates;

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use drydock_api::{
    Hypervisor,
    kubevirt::{VirtualMachineInstance, VirtualMachineInstanceMigration},
};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{
    arguments::{Completion, PluginArgs},
    failure::{CommandError, Exit},
};

use candidates::{CompletionRequest, Wanted, question};

/// Name of the plugin's executable.
const PLUGIN: &str = "kubectl-drydock";
/// Name of the executable that kubectl runs to complete a command line of the plugin.
const COMPLETER: &str = "kubectl_complete-drydock";
/// Content of the completion executable, which runs the plugin in the same folder.
const SCRIPT: &str = "#!/bin/sh\n\
    # Completes command lines of `kubectl drydock`; kubectl runs it.\n\
    exec \"${0%/*}/kubectl-drydock\" __complete -- \"$@\"\n";
/// Time limit for reading candidates from the cluster. A user waits for them.
const PATIENCE: Duration = Duration::from_secs(2);
/// Directive of Cobra: the shell must not offer files in addition to the candidates.
const NO_FILES: u8 = 4;
/// Directive of Cobra: the shell may offer files.
const FILES: u8 = 0;

/// Prints the completion script of a shell, or installs the completion executable.
///
/// # Errors
/// If the executable cannot be written.
pub(crate) fn print(command: &Completion, out: &mut dyn Write) -> Result<Exit, CommandError> {
    let shell = match command {
        Completion::Bash => Shell::Bash,
        Completion::Zsh => Shell::Zsh,
        Completion::Fish => Shell::Fish,
        Completion::Install { directory } => {
            let directory = match directory {
                Some(directory) => directory.clone(),
                None => folder_of_plugin(std::env::args_os().next())?,
            };
            let path = install(&directory)?;
            writeln!(out, "{} written", path.display())?;
            return Ok(Exit::Done);
        }
    };
    out.write_all(script(shell).as_bytes())?;
    Ok(Exit::Done)
}

/// Returns the completion script of a shell.
fn script(shell: Shell) -> String {
    // The bash script of clap_complete 4.6 loses the subcommands of a program with a hyphen in its name. The script is
    // therefore generated for another name. The lines that register the script end with the name, and no other lines
    // do.
    let name = if shell == Shell::Bash {
        "kubectl_drydock"
    } else {
        PLUGIN
    };
    let mut script = Vec::new();
    // A script counts the words of the name. On command lines of kubectl, the plugin's name has two words.
    generate(shell, &mut PluginArgs::command().name(name), name, &mut script);
    let script = String::from_utf8_lossy(&script);
    script.replace(&format!(" {name}\n"), &format!(" {PLUGIN}\n"))
}

/// Returns the folder of the plugin: the folder of `program`, which is the path by which the plugin was started, or
/// else the folder of the executable. kubectl starts plugins by their paths in `PATH`, where they may be links to files
/// in other folders.
fn folder_of_plugin(program: Option<OsString>) -> Result<PathBuf, CommandError> {
    let started = program.map(PathBuf::from);
    let folder = started
        .as_deref()
        .and_then(Path::parent)
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        return Ok(folder.to_owned());
    }
    let file = std::env::current_exe()?;
    let folder = file.parent().map(Path::to_owned);
    folder.ok_or_else(|| CommandError::Output(io::Error::other("the folder of the plugin cannot be determined")))
}

/// Writes the completion executable into a folder.
fn install(directory: &Path) -> Result<PathBuf, CommandError> {
    let path = directory.join(COMPLETER);
    let failed = |error| CommandError::Install {
        path: path.clone(),
        error,
    };
    // The executable may be running, so it is replaced by a complete file.
    let new = directory.join(format!("{COMPLETER}.new"));
    fs::write(&new, SCRIPT).map_err(failed)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    fs::rename(&new, &path).map_err(failed)?;
    Ok(path)
}

/// Prints the candidates for the last word of a command line, which may be empty.
///
/// # Errors
/// If the candidates cannot be written. If the cluster does not respond, there are no candidates.
pub(crate) async fn complete(words: &[String], out: &mut dyn Write) -> Result<Exit, CommandError> {
    let question = question(&PluginArgs::command(), words);
    let found = timeout(PATIENCE, found(&question)).await.unwrap_or_default();
    for candidate in question.matching(found) {
        writeln!(out, "{candidate}")?;
    }
    let directive = if question.wanted == Wanted::Files {
        FILES
    } else {
        NO_FILES
    };
    writeln!(out, ":{directive}")?;
    Ok(Exit::Done)
}

/// Returns the candidates from the cluster, or nothing if they cannot be read.
async fn found(question: &CompletionRequest) -> Vec<String> {
    if !question.wanted.is_in_cluster() {
        return Vec::new();
    }
    let Ok(client) = question.connection().client(false).await else {
        return Vec::new();
    };
    let found = match question.wanted {
        Wanted::Nodes => names::<Node>(&client).await,
        Wanted::Namespaces => names::<Namespace>(&client).await,
        Wanted::Machines => names::<VirtualMachineInstance>(&client).await,
        Wanted::Migrations => names::<VirtualMachineInstanceMigration>(&client).await,
        Wanted::Models => models(&client).await,
        Wanted::Words(_) | Wanted::Files | Wanted::Nothing => Ok(Vec::new()),
    };
    found.unwrap_or_default()
}

/// Returns the names of all objects of a kind, as NAME or NAMESPACE/NAME.
async fn names<K>(client: &Client) -> kube::Result<Vec<String>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone())
        .list_metadata(&ListParams::default())
        .await?;
    let name = |object: &kube::core::PartialObjectMeta<K>| match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    Ok(all.items.iter().map(name).collect())
}

/// Returns the names of all CPU models that any agent knows.
async fn models(client: &Client) -> kube::Result<Vec<String>> {
    let all = Api::<Hypervisor>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let facts = all
        .items
        .iter()
        .filter_map(|hypervisor| hypervisor.status.as_ref()?.facts.as_ref());
    let models = facts
        .filter_map(|facts| facts.virtualization.as_ref())
        .flat_map(|facts| facts.models.iter());
    Ok(models.map(|model| model.name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_complete_the_program_of_the_plugin() {
        for (shell, expected) in [
            (Shell::Zsh, "#compdef kubectl-drydock"),
            (Shell::Fish, "complete -c kubectl-drydock"),
        ] {
            let script = script(shell);
            assert!(
                script.contains(expected) && script.contains("maintenance"),
                "{expected}"
            );
        }
    }

    #[test]
    fn script_for_bash_completes_commands_of_commands() {
        // The script stores a command under the name with which it looks up the following words.
        let script = script(Shell::Bash);
        for part in [
            "cmd=\"kubectl_drydock__subcmd__maintenance\"",
            "        kubectl_drydock__subcmd__maintenance)\n",
            "start stop show list",
            "${COMP_CWORD} -eq 2 ]]",
            "-o default kubectl-drydock\n",
        ] {
            assert!(script.contains(part), "{part}: {script}");
        }
    }

    #[test]
    fn plugin_folder_follows_the_path_of_invocation() {
        let here = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        for (program, expected) in [
            (Some("/usr/local/bin/kubectl-drydock"), Path::new("/usr/local/bin")),
            (Some("./kubectl-drydock"), Path::new(".")),
            (Some("kubectl-drydock"), &here),
            (None, &here),
        ] {
            assert_eq!(
                folder_of_plugin(program.map(Into::into)).unwrap(),
                expected,
                "{program:?}"
            );
        }
    }

    #[test]
    fn installed_program_is_executable_and_replaces_old_program() {
        let folder = std::env::temp_dir().join(format!("drydock-completion-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(COMPLETER), "old").unwrap();
        let path = install(&folder).unwrap();
        let (text, mode) = (
            fs::read_to_string(&path).unwrap(),
            fs::metadata(&path).unwrap().permissions().mode(),
        );
        let files = fs::read_dir(&folder).unwrap().count();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((text.as_str(), mode & 0o777, files), (SCRIPT, 0o755, 1));
        assert!(matches!(
            install(Path::new("/no/such/folder")),
            Err(CommandError::Install { .. })
        ));
    }
}
