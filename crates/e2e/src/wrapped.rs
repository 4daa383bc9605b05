//! mainstay in namespaces of its own, so that the machine itself is never touched.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use mainstay_testkit::{Containerd, mainstay_binary};

/// A program that runs mainstay after the shell lines `before`, in the namespaces that `unshare` is asked for.
///
/// # Errors
/// When mainstay was not built, or the program cannot be written.
pub fn wrapped(containerd: &Containerd, unshare: &str, before: &str) -> Result<PathBuf> {
    let path = containerd.dir().join("wrapped-mainstay");
    let binary = mainstay_binary()?;
    let script = format!(
        "#!/bin/sh\nexec unshare {unshare} sh -ec '{before}\nexec {} \"$@\"' sh \"$@\"\n",
        binary.display()
    );
    write_program(&path, &script)?;
    Ok(path)
}

/// Writes a program, by another process: a child that a test beside this one starts would hold a file that is written here
/// open, and the kernel runs no program that somebody writes.
///
/// # Errors
/// When it cannot be written.
pub fn write_program(path: &Path, script: &str) -> Result<()> {
    let write = "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"";
    let written = Command::new("sh").args(["-c", write, "sh", script]).arg(path).status()?;
    ensure!(written.success(), "cannot write {}", path.display());
    Ok(())
}
