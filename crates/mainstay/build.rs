//! Links a release so that equal code is there once.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let set = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    // Code is most of what is resident, and generic code is written out again for types of the same form. The linker that
    // comes with Rust for this target can fold it; nothing here compares functions by their addresses.
    if set("PROFILE", "release")
        && set("CARGO_CFG_TARGET_ARCH", "x86_64")
        && set("CARGO_CFG_TARGET_OS", "linux")
    {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
        // Half a megabyte of relocations is read once; packed they are some pages. glibc has known the form since 2.36, and a
        // binary that has it is refused by an older one in so many words.
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
        // What a node at work runs is a third of the code. Side by side it is a third of the pages, too; the rest stays on
        // disk. A name that is not there (any more) is passed over: then a page more is resident, and nothing else happens.
        // Asked for at run time: a checkout that shares its target directory with another has its own list.
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
        let order = std::path::Path::new(&here).join("link/functions.order");
        println!("cargo::rerun-if-changed=link/functions.order");
        println!("cargo::rustc-link-arg-bins=-Wl,--no-warn-symbol-ordering");
        println!("cargo::rustc-link-arg-bins=-Wl,--symbol-ordering-file={}", order.display());
    }
}
