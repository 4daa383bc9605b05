//! Checks that no statement looks at two watched values at once.
//!
//! What `watch::Receiver::borrow` returns is a lock, held to the end of the statement. Two tasks that hold one each and wait for
//! the other's, with somebody who wants to write in between, wait for ever.

use anyhow::{Context, Result, bail};
use std::{fs, path::Path};

const LOOKS: [&str; 2] = [".borrow()", ".borrow_and_update()"];

pub(crate) fn run(root: &Path) -> Result<()> {
    let mut problems = Vec::new();
    let crates = fs::read_dir(root.join("crates")).context("cannot list the crates")?;
    for directory in crates.flatten() {
        check_directory(&directory.path().join("src"), &mut problems)?;
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}\nclone what is watched in statements of their own", problems.join("\n"))
}

fn check_directory(directory: &Path, problems: &mut Vec<String>) -> Result<()> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            check_directory(&path, problems)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            problems.extend(
                lines(&text).map(|line| format!("{}:{line}: two watched values at once", path.display())),
            );
        }
    }
    Ok(())
}

/// The lines at which a statement begins that looks twice.
fn lines(text: &str) -> impl Iterator<Item = usize> {
    let mut line = 1;
    statements(text).filter_map(move |statement| {
        let begins = line;
        line += statement.matches('\n').count();
        let looks: usize = LOOKS.iter().map(|look| statement.matches(look).count()).sum();
        (looks > 1).then_some(begins)
    })
}

/// Cut at semicolons, and behind the condition of an `if` or a `while`, which lets go of what it looked at.
fn statements(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest
            .match_indices([';', '{'])
            .find(|(at, sign)| *sign == ";" || rest.get(..*at).is_some_and(is_condition))
            .map_or(rest.len(), |(at, _)| at + 1);
        let (statement, after) = rest.split_at(end);
        rest = after;
        Some(statement)
    })
}

/// A brace behind this begins what a condition decides about.
fn is_condition(before: &str) -> bool {
    let clause = before.rsplit(['{', '}', ';']).next().unwrap_or_default();
    clause.split_whitespace().any(|word| word == "if" || word == "while")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_counted_by_statement() {
        for (text, expected) in [
            ("let a = x.borrow().clone();\nlet b = y.borrow().clone();\n", vec![]),
            ("one();\nlet a = (x.borrow().clone(), y.borrow().clone());\n", vec![1]),
            (
                "one();\ntwo();\nlet a = A {\n x: x.borrow().clone(),\n y: y.borrow_and_update().clone(),\n};",
                vec![2],
            ),
            ("if x.borrow().is_some() {\n let a = x.borrow().clone();\n}", vec![]),
            ("if both(&x.borrow(), &y.borrow()) {\n}", vec![1]),
        ] {
            assert_eq!(lines(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
