//! `docs/reference/cli.md`, rendered from the command line's definition.

use std::{fmt::Write as _, path::Path};

use clap::{Command, CommandFactory};

use super::Cli;

/// Compares the page at `path` with `expected`; with `FOREBAY_BLESS` set, writes the page instead.
pub(crate) fn check(path: &Path, expected: &str) {
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == expected,
        "{} is outdated; FOREBAY_BLESS=1 cargo test -p forebay reference writes it",
        path.display()
    );
}

fn render(command: &Command) -> String {
    let mut text = format!(
        "# Command line\n\n{}.\n\n\
         Flags override environment variables, which override the [settings](settings.md) in `--config`.\n\n\
         This page is generated from the source: `FOREBAY_BLESS=1 cargo test -p forebay reference` writes it.\n",
        command.get_about().unwrap()
    );
    section(&mut text, "forebay", command);
    for subcommand in command.get_subcommands().filter(|subcommand| subcommand.get_name() != "help") {
        section(&mut text, &format!("forebay {}", subcommand.get_name()), subcommand);
    }
    text
}

fn section(text: &mut String, name: &str, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    write!(
        text,
        "\n## `{name}`\n\n{about}.\n\n| flag | environment variable | description |\n|---|---|---|\n"
    )
    .unwrap();
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let value = argument.get_value_names().filter(|_| argument.get_action().takes_values());
        let value = value.map(|names| names.join(" ")).unwrap_or_default();
        let flag = match argument.get_long() {
            Some(long) if value.is_empty() => format!("--{long}"),
            Some(long) => format!("--{long} {value}"),
            None if argument.is_required_set() => value,
            None => format!("[{value}]"),
        };
        let environment =
            argument.get_env().map_or_else(String::new, |name| format!("`{}`", name.to_string_lossy()));
        let mut help = argument.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !defaults.is_empty()
            && !argument.is_hide_default_value_set()
            && argument.get_action().takes_values()
        {
            write!(help, " [default: {}]", defaults.join(", ")).unwrap();
        }
        writeln!(text, "| `{}` | {environment} | {help} |", flag.replace('|', "\\|")).unwrap();
    }
}

#[test]
fn cli_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    check(&path, &render(&Cli::command()));
}
