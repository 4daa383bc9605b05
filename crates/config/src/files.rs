//! The only place of this crate that reads files.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::problem::Problem;

/// No configuration is this large; a device or a log named by mistake is.
const LARGEST_FILE_BYTES: u64 = 4 << 20;

/// A file and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextFile {
    /// The path as it is shown.
    pub(crate) name: String,
    /// The absolute directory it lies in, against which relative paths in it are resolved.
    pub(crate) directory: PathBuf,
    /// Its content.
    pub(crate) text: String,
}

/// The files that the flags name.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// The `--config` file.
    pub(crate) config: Option<TextFile>,
    /// The `*.conf` files below `--config-dir`, in the order in which they are merged.
    pub(crate) drop_ins: Vec<TextFile>,
    /// Other files there, which are not read.
    pub(crate) skipped: Vec<String>,
}

/// Reads what `--config` and `--config-dir` name (empty for none), as far as it can be read.
pub(crate) fn read(config: &str, config_dir: &str) -> (Files, Vec<Problem>) {
    let mut files = Files::default();
    let mut problems = Vec::new();
    if !config.is_empty() {
        match read_text(Path::new(config), "--config") {
            Ok(file) => files.config = Some(file),
            Err(problem) => problems.push(problem),
        }
    }
    if !config_dir.is_empty() {
        walk(Path::new(config_dir), &mut files, &mut problems);
    }
    (files, problems)
}

/// Goes through a directory as Go's `filepath.WalkDir` does: sorted by name, each subdirectory in its place, symbolic
/// links to directories not followed.
fn walk(directory: &Path, files: &mut Files, problems: &mut Vec<Problem>) {
    let unreadable = |error: std::io::Error| {
        Problem::new(
            "--config-dir",
            format!("cannot read the directory: {error}"),
            "check the path and its permissions",
        )
        .at(&directory.display().to_string())
    };
    let entries = match fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(mut entries) => {
            entries.sort_by_key(fs::DirEntry::file_name);
            entries
        }
        Err(error) => return problems.push(unreadable(error)),
    };
    for entry in entries {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&path, files, problems),
            Ok(_) if path.extension().is_some_and(|extension| extension == "conf") => {
                match read_text(&path, "--config-dir") {
                    Ok(file) => files.drop_ins.push(file),
                    Err(problem) => problems.push(problem),
                }
            }
            Ok(_) => files.skipped.push(path.display().to_string()),
            Err(error) => problems.push(unreadable(error)),
        }
    }
}

fn read_text(path: &Path, flag: &str) -> Result<TextFile, Problem> {
    let name = path.display().to_string();
    let problem = |message: String, remedy: &str| Err(Problem::new(flag, message, remedy).at(&name));
    let mut bytes = Vec::new();
    let open =
        fs::File::open(path).and_then(|file| file.take(LARGEST_FILE_BYTES + 1).read_to_end(&mut bytes));
    if let Err(error) = open {
        return problem(format!("cannot read the file: {error}"), "check the path and its permissions");
    }
    if u64::try_from(bytes.len()).is_ok_and(|length| length > LARGEST_FILE_BYTES) {
        return problem(
            format!("the file is larger than {} MiB", LARGEST_FILE_BYTES >> 20),
            "is it a KubeletConfiguration?",
        );
    }
    let Ok(text) = String::from_utf8(bytes) else {
        return problem("the file is not UTF-8".to_owned(), "save it as UTF-8");
    };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let directory = absolute.parent().map(Path::to_owned).unwrap_or_default();
    Ok(TextFile { name, directory, text })
}
