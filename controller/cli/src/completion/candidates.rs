//! Determines the candidates for the last word of a command line from the definition of the command line.

use clap::{Arg, ArgAction, Command, FromArgMatches, Parser};

use crate::connection::ConnectionOptions;

/// Kind of values that the last word of a command line can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One of these words. Each has a description, which may be empty.
    Words(Vec<(String, String)>),
    /// Name of a node.
    Nodes,
    /// Name of a namespace.
    Namespaces,
    /// Name of a virtual machine, as NAMESPACE/NAME.
    Machines,
    /// Name of a migration, as NAMESPACE/NAME.
    Migrations,
    /// Name of a CPU model.
    Models,
    /// Path of a file.
    Files,
    /// Any value. There are no candidates.
    Nothing,
}

impl Wanted {
    /// Returns whether the candidates are read from the cluster.
    pub(super) fn is_in_cluster(&self) -> bool {
        matches!(
            self,
            Self::Nodes | Self::Namespaces | Self::Machines | Self::Migrations | Self::Models
        )
    }

    /// Returns the kind of values of an argument, according to its possible values or the name of the value in the
    /// help.
    fn of(argument: &Arg) -> Self {
        let values = argument.get_possible_values();
        if !values.is_empty() {
            let values = values.iter().filter(|value| !value.is_hide_set());
            let help = |value: &clap::builder::PossibleValue| value.get_help().map(ToString::to_string);
            return Self::Words(
                values
                    .map(|value| (value.get_name().to_owned(), help(value).unwrap_or_default()))
                    .collect(),
            );
        }
        let name = argument.get_value_names().and_then(|names| names.first());
        match name.map(clap::builder::Str::as_str) {
            Some("NODE") => Self::Nodes,
            Some("NAMESPACE") => Self::Namespaces,
            Some("VM") => Self::Machines,
            Some("MIGRATION") => Self::Migrations,
            Some("MODEL") => Self::Models,
            Some("FILE" | "DIRECTORY") => Self::Files,
            _ => Self::Nothing,
        }
    }
}

/// A word to complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CompletionRequest {
    /// Kind of values that the word can have.
    pub(super) wanted: Wanted,
    /// Beginning of the value that the user has typed.
    begin: String,
    /// Part of the word before the value: `--node=`.
    before: String,
    /// Values that the command line already has. They are no candidates.
    given: Vec<String>,
    /// Connection options for the API server that the command line has so far.
    options: Vec<String>,
}

impl CompletionRequest {
    /// Returns the candidates as lines. These are the names `found` in the cluster or the words of the argument, as far
    /// as they begin like the last word.
    pub(super) fn matching(&self, found: Vec<String>) -> Vec<String> {
        let words = match &self.wanted {
            Wanted::Words(words) => words.clone(),
            _ => found.into_iter().map(|name| (name, String::new())).collect(),
        };
        let fits = |word: &str| word.starts_with(&self.begin) && !self.given.iter().any(|given| given == word);
        let mut lines: Vec<String> = words
            .into_iter()
            .filter(|(word, _)| fits(word))
            .map(|(word, help)| {
                let word = format!("{}{word}", self.before);
                if help.is_empty() {
                    word
                } else {
                    format!("{word}\t{help}")
                }
            })
            .collect();
        lines.sort();
        lines.dedup();
        lines
    }

    /// Returns the connection options for the API server that the command line has so far.
    pub(super) fn connection(&self) -> ConnectionOptions {
        #[derive(Parser)]
        struct CommandFlags {
            #[command(flatten)]
            connection: ConnectionOptions,
        }
        let command = <CommandFlags as clap::CommandFactory>::command().ignore_errors(true);
        let words = std::iter::once("kubectl-drydock".to_owned()).chain(self.options.iter().cloned());
        let matches = command.get_matches_from(words);
        CommandFlags::from_arg_matches(&matches)
            .map_or_else(|_| ConnectionOptions::default(), |options| options.connection)
    }
}

/// Returns the request to complete the last of the words. The words do not include the program's name.
pub(super) fn question(root: &Command, words: &[String]) -> CompletionRequest {
    let (last, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    let mut command = root;
    let (mut positionals, mut given, mut options) = (0, Vec::new(), Vec::new());
    let mut awaits: Option<&Arg> = None;
    for word in before {
        if let Some(argument) = awaits.take() {
            keep_option(root, argument, word, &mut options);
            continue;
        }
        if word.starts_with('-') && word.len() > 1 {
            let (name, value) = word
                .split_once('=')
                .map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            match (
                option(root, command, name).filter(|argument| takes_value(argument)),
                value,
            ) {
                (Some(argument), Some(value)) => keep_option(root, argument, value, &mut options),
                (argument, _) => awaits = argument,
            }
        } else if let Some(next) = command.find_subcommand(word).filter(|_| positionals == 0) {
            command = next;
        } else {
            positionals += 1;
            given.push(word.clone());
        }
    }
    let mut question = CompletionRequest {
        wanted: Wanted::Nothing,
        begin: last.to_owned(),
        before: String::new(),
        given: Vec::new(),
        options,
    };
    if let Some(argument) = awaits {
        question.wanted = Wanted::of(argument);
    } else if let Some((name, value)) = last.split_once('=').filter(|(name, _)| name.starts_with("--")) {
        question.wanted = option(root, command, name).map_or(Wanted::Nothing, Wanted::of);
        (question.begin, question.before) = (value.to_owned(), format!("{name}="));
    } else if last.starts_with('-') {
        question.wanted = Wanted::Words(option_names(root, command));
    } else if command.has_subcommands() && positionals == 0 {
        let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
        let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
        question.wanted = Wanted::Words(
            commands
                .map(|command| (command.get_name().to_owned(), about(command)))
                .collect(),
        );
    } else {
        let all: Vec<&Arg> = command.get_positionals().collect();
        let repeated = all
            .last()
            .copied()
            .filter(|argument| matches!(argument.get_action(), ArgAction::Append));
        let next = all.get(positionals).copied().or(repeated);
        question.wanted = next.map_or(Wanted::Nothing, Wanted::of);
        question.given = given;
    }
    question
}

/// Returns the option with this name (`--node`, `-n`) of a command or of all commands.
fn option<'a>(root: &'a Command, command: &'a Command, name: &str) -> Option<&'a Arg> {
    let long = name.strip_prefix("--");
    let short = name
        .strip_prefix('-')
        .filter(|_| long.is_none())
        .and_then(|name| name.chars().next());
    let is_named = |argument: &&Arg| {
        long.is_some_and(|long| argument.get_long() == Some(long))
            || short.is_some_and(|short| argument.get_short() == Some(short))
    };
    command.get_arguments().chain(root.get_arguments()).find(is_named)
}

fn takes_value(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Keeps an option that all commands have. These are the connection options for the API server.
fn keep_option(root: &Command, argument: &Arg, value: &str, options: &mut Vec<String>) {
    let is_of_all = root.get_arguments().any(|other| other.get_id() == argument.get_id());
    if let Some(long) = argument.get_long().filter(|_| is_of_all) {
        options.push(format!("--{long}={value}"));
    }
}

/// Returns the long names of all options of a command, with their descriptions.
fn option_names(root: &Command, command: &Command) -> Vec<(String, String)> {
    let arguments = command.get_arguments().chain(root.get_arguments());
    arguments
        .filter(|argument| !argument.is_hide_set())
        .filter_map(|argument| {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            Some((format!("--{}", argument.get_long()?), help))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::arguments::PluginArgs;

    fn question_of(line: &str) -> CompletionRequest {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        question(&PluginArgs::command(), &words)
    }

    #[test]
    fn completion_kind_follows_the_command_line_position() {
        for (line, expected) in [
            ("drain ", Wanted::Nodes),
            ("drain worker-1 wor", Wanted::Nodes),
            ("plan -l a=b ", Wanted::Nodes),
            ("maintenance stop ", Wanted::Nodes),
            ("maintenance show worker-1 ", Wanted::Nothing),
            ("explain vm sho", Wanted::Machines),
            ("explain vm shop/web --node ", Wanted::Nodes),
            ("explain vm shop/web --node=wor", Wanted::Nodes),
            ("explain vm -n ", Wanted::Namespaces),
            ("explain migration ", Wanted::Migrations),
            ("explain model ", Wanted::Models),
            ("watch --vm ", Wanted::Machines),
            ("--kubeconfig ", Wanted::Files),
            ("drain --reason ", Wanted::Nothing),
        ] {
            assert_eq!(question_of(line).wanted, expected, "{line}");
        }
    }

    #[test]
    fn words_are_those_of_the_command_line() {
        for (line, expected) in [
            ("dr", &["drain"][..]),
            ("--context prod maintenance s", &["show", "start", "stop"]),
            ("drain worker-1 -o ", &["json", "lines", "text"]),
            ("plan --output=j", &["--output=json"]),
            ("drain --fail", &["--fail-when-blocked"]),
            ("top m", &["migrations"]),
            ("__com", &[]),
        ] {
            let lines = question_of(line).matching(Vec::new());
            let words: Vec<&str> = lines.iter().map(|line| line.split('\t').next().unwrap()).collect();
            assert_eq!(words, expected, "{line}");
        }
    }

    #[test]
    fn names_that_were_given_are_no_candidates_again() {
        let found = ["worker-2", "worker-1", "control-1"].map(str::to_owned);
        assert_eq!(question_of("drain worker-1 wor").matching(found.into()), ["worker-2"]);
    }

    #[test]
    fn options_about_the_api_server_are_kept() {
        let question = question_of("--context prod drain --as=admin --reason disk ");
        assert_eq!(question.options, ["--context=prod", "--as=admin"]);
        let text = format!("{:?}", question.connection());
        assert!(
            text.contains("Some(\"prod\")") && text.contains("Some(\"admin\")"),
            "{text}"
        );
    }
}
