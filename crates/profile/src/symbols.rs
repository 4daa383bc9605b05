//! From addresses in this process to names of functions.

use std::{collections::BTreeMap, fs::File, io, path::Path};

use crate::{
    elf::Elf,
    maps::{self, Mapping},
};

/// The functions that these addresses of this process lie in, as the symbol tables of its files know them. Reads those files
/// each time and keeps nothing of them. Blocks on the disk.
#[must_use]
pub fn symbols(addresses: &[usize]) -> Vec<Option<String>> {
    let mappings = maps::executable().unwrap_or_default();
    let names = names(&mappings, addresses.iter().map(|address| *address as u64));
    addresses.iter().map(|address| names.get(&(*address as u64)).cloned()).collect()
}

/// The names of those addresses that have one.
pub(crate) fn names(mappings: &[Mapping], addresses: impl Iterator<Item = u64>) -> BTreeMap<u64, String> {
    // Per file: the address that it gives to what is asked for, and the one that this process does.
    let mut files: BTreeMap<&Path, Vec<(u64, u64)>> = BTreeMap::new();
    for address in addresses {
        let inside = |mapping: &&Mapping| (mapping.start..mapping.end).contains(&address);
        if let Some(mapping) = mappings.iter().find(inside) {
            files.entry(&mapping.file).or_default().push((address - mapping.start + mapping.offset, address));
        }
    }
    let mut names = BTreeMap::new();
    for (file, wanted) in files {
        if let Err(error) = add_names(file, wanted, &mut names) {
            tracing::debug!(file = %file.display(), %error, "no names of functions");
        }
    }
    names
}

fn add_names(path: &Path, wanted: Vec<(u64, u64)>, names: &mut BTreeMap<u64, String>) -> io::Result<()> {
    // The program itself is what runs, whatever its name has come to mean.
    let own = std::env::current_exe().is_ok_and(|exe| exe.strip_prefix(path).is_ok() || exe == path);
    let elf = Elf::open(File::open(if own { Path::new("/proc/self/exe") } else { path })?)?;
    let mut wanted: Vec<(u64, u64)> =
        wanted.into_iter().filter_map(|(offset, address)| Some((elf.address(offset)?, address))).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let addresses: Vec<u64> = wanted.iter().map(|(in_file, _)| *in_file).collect();
    for ((_, address), name) in wanted.into_iter().zip(elf.names(&addresses)?) {
        if let Some(name) = name {
            // Without the hash that makes it unique.
            names.insert(address, format!("{:#}", rustc_demangle::demangle(&name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_names() {
        let address = symbols as *const () as usize;
        let libc_function = libc::getpid as *const () as usize;
        let names = symbols(&[address + 1, 1, libc_function]);
        assert_eq!(names[0].as_deref(), Some("mainstay_profile::symbols::symbols"));
        assert_eq!(names[1], None);
        assert!(names[2].as_deref().is_some_and(|name| name.contains("getpid")), "{names:?}");
    }
}
