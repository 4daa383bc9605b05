//! Makes Rust of `proto/`: messages and clients, servers of plugins, and the table of a pod's fields.

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Each in a directory of its own, because upstream gave two of them the same package.
const INTERFACES: [(&str, &[&str]); 6] = [
    ("podinfo", &["podinfo/v1alpha1/api.proto"]),
    ("pods", &["pods/v1alpha1/api.proto"]),
    ("podresources", &["podresources/v1/api.proto", "mainstay/podresources/v1alpha1/watch.proto"]),
    ("podresources_v1alpha1", &["podresources/v1alpha1/api.proto"]),
    ("otlp", &["opentelemetry/trace_service.proto"]),
    ("plugins", &["deviceplugin/v1beta1/api.proto", "pluginregistration/v1/api.proto"]),
];

/// Where JSON has a message's fields in the place of the message.
const INLINE: [&str; 4] = ["volumeSource", "handler", "ephemeralContainerCommon", "localObjectReference"];

fn main() -> Result<(), Box<dyn Error>> {
    let protos = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo:rerun-if-changed={}", protos.display());
    for (name, files) in INTERFACES {
        let dir = out.join(name);
        fs::create_dir_all(&dir)?;
        tonic_prost_build::configure()
            // Only what a device plugin and its registration need: everything else is served by hand, because many clients share it.
            .build_server(name == "plugins")
            .bytes(".")
            .emit_rerun_if_changed(false)
            .out_dir(dir)
            .compile_protos(
                &files.iter().map(|file| protos.join(file)).collect::<Vec<_>>(),
                std::slice::from_ref(&protos),
            )?;
    }
    fs::write(out.join("pod_fields.rs"), pod_fields(&protos)?)?;
    Ok(())
}

/// A static for each message; fields by number.
fn pod_fields(protos: &Path) -> Result<String, Box<dyn Error>> {
    let set = tonic_prost_build::Config::new().load_fds(&[protos.join("core/v1/pod.proto")], &[protos])?;
    let file = set.file.first().ok_or("pod.proto is empty")?;
    let mut text = String::new();
    for message in &file.message_type {
        let name = message.name();
        if special(name).is_some() {
            continue;
        }
        writeln!(text, "pub(super) static {}: Message = Message {{ name: {name:?}, fields: &[", upper(name))?;
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        for field in fields {
            let entry = message.nested_type.iter().find(|nested| {
                nested.options.as_ref().is_some_and(|options| options.map_entry())
                    && field.type_name().ends_with(&format!(".{name}.{}", nested.name()))
            });
            let kind = match entry {
                Some(entry) => {
                    let value =
                        entry.field.iter().find(|it| it.number() == 2).ok_or("a map without values")?;
                    format!("Kind::Map(&{})", kind(value.r#type() as i32, value.type_name())?)
                }
                None => kind(field.r#type() as i32, field.type_name())?,
            };
            writeln!(
                text,
                "    Field {{ name: {:?}, number: {}, repeated: {}, inline: {}, kind: {kind} }},",
                field.name(),
                field.number(),
                entry.is_none() && field.label() as i32 == 3,
                INLINE.contains(&field.name()),
            )?;
        }
        text.push_str("] };\n");
    }
    Ok(text)
}

/// By the numbers of `google.protobuf.FieldDescriptorProto.Type`.
fn kind(number: i32, type_name: &str) -> Result<String, Box<dyn Error>> {
    Ok(match number {
        9 => "Kind::String".to_owned(),
        8 => "Kind::Bool".to_owned(),
        3 | 5 => "Kind::Int".to_owned(),
        11 => {
            let name = type_name.rsplit('.').next().unwrap_or(type_name);
            match special(name) {
                Some(kind) => format!("Kind::{kind}"),
                None => format!("Kind::Message(&{})", upper(name)),
            }
        }
        other => return Err(format!("no way to encode a field of type {other}").into()),
    })
}

/// Messages that are something else in JSON.
fn special(name: &str) -> Option<&'static str> {
    ["Time", "Quantity", "IntOrString", "FieldsV1"].into_iter().find(|special| *special == name)
}

fn upper(name: &str) -> String {
    let mut upper = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            upper.push('_');
        }
        upper.push(letter.to_ascii_uppercase());
    }
    upper.trim_start_matches('_').to_owned()
}
