//! Makes messages and clients of `proto/`. Each interface has a directory of its own, because upstream gave two of them the same package.

use std::{env, error::Error, fs, path::Path};

const INTERFACES: [(&str, &str); 4] = [
    ("podinfo", "podinfo/v1alpha1/api.proto"),
    ("pods", "pods/v1alpha1/api.proto"),
    ("podresources", "podresources/v1/api.proto"),
    ("core", "core/v1/pod.proto"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let protos = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../../proto");
    println!("cargo:rerun-if-changed={}", protos.display());
    for (name, file) in INTERFACES {
        let out = Path::new(&env::var("OUT_DIR")?).join(name);
        fs::create_dir_all(&out)?;
        let settings = tonic_prost_build::configure().build_server(false).out_dir(out);
        settings.compile_protos(&[protos.join(file)], std::slice::from_ref(&protos))?;
    }
    Ok(())
}
