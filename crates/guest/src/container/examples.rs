//! Images and programs for tests, made by hand: layers, an archive of `docker save`, an OCI layout,
//! a dynamic ELF file.

use image::sealed::sha256;
use std::io::Write;

/// An entry of a layer: path, kind, and its content or target.
pub type Entry<'a> = (&'a str, tar::EntryType, &'a str);

/// A tar archive. The paths are written as they are.
pub fn tar(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = tar::Header::new_ustar();
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(if kind.is_dir() { 0o755 } else { 0o644 });
        let data = match kind {
            tar::EntryType::Symlink | tar::EntryType::Link => {
                let target = &mut header.as_old_mut().linkname;
                target[..content.len()].copy_from_slice(content.as_bytes());
                ""
            }
            _ => content,
        };
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// The packed bytes.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An archive with these files.
pub fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, &**data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// The configuration of an image with these unpacked layers.
pub fn configuration(architecture: &str, layers: &[Vec<u8>]) -> String {
    let digests: Vec<String> =
        layers.iter().map(|layer| format!("\"sha256:{}\"", sha256(layer))).collect();
    format!(
        r#"{{"architecture":"{architecture}","os":"linux",
        "config":{{"Env":["PATH=/app:/bin","A=b=c"],"WorkingDir":"/app","Cmd":["/bin/sh"]}},
        "rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        digests.join(",")
    )
}

/// The files of `docker save`.
pub fn docker(layers: &[Vec<u8>]) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("c.json".to_owned(), configuration("amd64", layers).into_bytes())];
    let mut names = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let name = format!("{number}/layer.tar");
        names.push(format!("\"{name}\""));
        files.push((name, layer.clone()));
    }
    let manifest = format!(
        r#"[{{"Config":"c.json","RepoTags":["app:latest"],"Layers":[{}]}}]"#,
        names.join(",")
    );
    files.push(("manifest.json".into(), manifest.into_bytes()));
    files
}

/// The files of an OCI layout whose layers are packed by `pack`.
pub fn oci(
    architecture: &str,
    layers: &[Vec<u8>],
    pack: fn(&[u8]) -> Vec<u8>,
) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut put = |kind: &str, bytes: Vec<u8>| {
        let digest = sha256(&bytes);
        let text = format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"sha256:{digest}",
            "size":{}"#,
            bytes.len()
        );
        files.push((format!("blobs/sha256/{digest}"), bytes));
        text
    };
    let config = put("config.v1+json", configuration(architecture, layers).into_bytes());
    let layers: Vec<String> =
        layers.iter().map(|layer| put("layer.v1.tar", pack(layer)) + "}").collect();
    let manifest = put(
        "manifest.v1+json",
        format!(r#"{{"schemaVersion":2,"config":{config}}},"layers":[{}]}}"#, layers.join(","))
            .into_bytes(),
    );
    let platform = format!(r#","platform":{{"architecture":"{architecture}","os":"linux"}}}}"#);
    let attested = r#","platform":{"architecture":"unknown","os":"unknown"}}"#;
    // As buildx writes it: an index within the index, and a description of the build.
    let inner = put(
        "index.v1+json",
        format!(r#"{{"schemaVersion":2,"manifests":[{manifest}{platform},{manifest}{attested}]}}"#)
            .into_bytes(),
    );
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{inner}}}]}}"#);
    files.push(("index.json".into(), index.into_bytes()));
    files.push(("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
    files
}

/// A layer that hides files of the layers below.
pub fn upper() -> Vec<u8> {
    tar(&[
        ("a/.wh.b", tar::EntryType::Regular, ""),
        ("l/x", tar::EntryType::Symlink, "../a"),
        ("a/.wh..wh..opq", tar::EntryType::Regular, ""),
    ])
}

/// A program with this loader that needs these libraries.
pub fn dynamic_program(loader: &str, libraries: &[&str]) -> Vec<u8> {
    let needed: Vec<(u64, &str)> = libraries.iter().map(|name| (1, *name)).collect();
    elf(Some(loader), &needed)
}

/// A dynamic ELF file with these entries (tag and text) in its dynamic segment. With an interpreter
/// it is a program.
pub fn elf(interpreter: Option<&str>, entries: &[(u64, &str)]) -> Vec<u8> {
    const HEADER: usize = 64;
    const SEGMENT: usize = 56;
    let mut strings = vec![0];
    let mut dynamic: Vec<(u64, u64)> = Vec::new();
    for (tag, text) in entries {
        dynamic.push((*tag, strings.len() as u64));
        strings.extend(text.as_bytes());
        strings.push(0);
    }
    let interpreter_at = strings.len();
    strings.extend(interpreter.unwrap_or_default().as_bytes());
    strings.push(0);
    let strings_at = HEADER + 3 * SEGMENT;
    let dynamic_at = strings_at + strings.len();
    // The strings' address: the file is loaded at 0x1000.
    dynamic.extend([(5, 0x1000 + strings_at as u64), (0, 0)]);
    let size = (dynamic_at + 16 * dynamic.len()) as u64;
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0u64, HEADER as u64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let mut segment = |kind: u32, offset: u64, size: u64| {
        file.extend(kind.to_le_bytes());
        file.extend(5u32.to_le_bytes());
        for word in [offset, 0x1000 + offset, 0, size, size, 1] {
            file.extend(word.to_le_bytes());
        }
    };
    segment(1, 0, size);
    segment(2, dynamic_at as u64, 16 * dynamic.len() as u64);
    let text = interpreter.map_or(0, |text| text.len() as u64 + 1);
    // Segments of type 0 do not count.
    let kind = if interpreter.is_some() { 3 } else { 0 };
    segment(kind, (strings_at + interpreter_at) as u64, text);
    file.extend(strings);
    for (tag, value) in dynamic {
        file.extend(tag.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file
}
