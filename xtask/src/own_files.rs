//! The manifests that somebody wrote into a run's directory: they outlive the run, and are there again in the next.

use anyhow::{Context, Result};
use mainstay_testkit::build_dir;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Where they are kept between runs.
fn kept() -> PathBuf {
    build_dir().join("own-manifests")
}

/// Beside the manifests, once they are kept: from then on they are being taken away.
const DONE: &str = "own-manifests-are-kept";

/// Keeps what of `manifests` is in none of the examples, in place of what was kept before. Does nothing for a directory that is
/// not there, or whose files are kept already. The names of what was kept.
pub(crate) fn keep(manifests: &Path, examples: &Path) -> Result<Vec<String>> {
    keep_in(&kept(), manifests, examples)
}

/// Puts what was kept into `manifests`. The names of what was put there.
pub(crate) fn put_back(manifests: &Path) -> Result<Vec<String>> {
    put_back_from(&kept(), manifests)
}

fn keep_in(kept: &Path, manifests: &Path, examples: &Path) -> Result<Vec<String>> {
    let done = manifests.with_file_name(DONE);
    if !manifests.is_dir() || done.exists() {
        return Ok(Vec::new());
    }
    let known: BTreeSet<OsString> = files(examples)?.into_iter().map(|(name, _)| name).collect();
    let own: Vec<_> = files(manifests)?.into_iter().filter(|(name, _)| !known.contains(name)).collect();
    // Copied before the last ones go: a full disk loses nothing.
    let next = kept.with_extension("new");
    remove(&next)?;
    copy(&own, &next)?;
    remove(kept)?;
    if next.exists() {
        fs::rename(&next, kept).with_context(|| format!("cannot make {}", kept.display()))?;
    }
    fs::write(&done, "").with_context(|| format!("cannot write {}", done.display()))?;
    Ok(own.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect())
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    Ok(())
}

fn put_back_from(kept: &Path, manifests: &Path) -> Result<Vec<String>> {
    if kept.is_dir() { copy(&files(kept)?, manifests) } else { Ok(Vec::new()) }
}

fn copy(files: &[(OsString, PathBuf)], to: &Path) -> Result<Vec<String>> {
    if !files.is_empty() {
        fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    }
    for (name, path) in files {
        fs::copy(path, to.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
    }
    Ok(files.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect())
}

/// The plain files of a directory and what links lead to, by name.
fn files(directory: &Path) -> Result<Vec<(OsString, PathBuf)>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| (entry.file_name(), entry.path()))
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_example_outlives_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let [kept, run, examples] = ["kept", "run", "examples"].map(|name| directory.path().join(name));
        for directory in [&run, &examples] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("web.yaml"), "example").unwrap();
        }
        fs::write(run.join("mine.yaml"), "mine").unwrap();
        fs::write(run.join("odd.json"), "odd").unwrap();
        assert_eq!(keep_in(&kept, &run, &examples).unwrap(), ["mine.yaml", "odd.json"]);

        // One that is killed while it takes them away.
        fs::remove_file(run.join("mine.yaml")).unwrap();
        assert_eq!(keep_in(&kept, &run, &examples).unwrap(), [""; 0]);

        // A run that is swept away, and the next.
        fs::remove_dir_all(&run).unwrap();
        fs::remove_file(directory.path().join(DONE)).unwrap();
        assert_eq!(keep_in(&kept, &run, &examples).unwrap(), [""; 0]);
        fs::create_dir(&run).unwrap();
        assert_eq!(put_back_from(&kept, &run).unwrap(), ["mine.yaml", "odd.json"]);
        assert_eq!(fs::read_to_string(run.join("mine.yaml")).unwrap(), "mine");

        // What was taken away does not come back.
        fs::remove_file(run.join("odd.json")).unwrap();
        assert_eq!(keep_in(&kept, &run, &examples).unwrap(), ["mine.yaml"]);
        fs::remove_file(run.join("mine.yaml")).unwrap();
        fs::remove_file(directory.path().join(DONE)).unwrap();
        assert_eq!(keep_in(&kept, &run, &examples).unwrap(), [""; 0]);
        assert_eq!(put_back_from(&kept, &run).unwrap(), [""; 0]);
    }
}
