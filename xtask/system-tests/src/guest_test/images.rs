//! Container images made by hand from a directory: what `docker save` writes, and an OCI layout.
//!
//! Input: directories, one a layer, the lowest first. Output: an archive or a directory.

use anyhow::Result;
use image::sealed::sha256;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// A tar archive of what is in `directory`, owned by somebody, at some time.
fn layer(directory: &Path) -> Result<Vec<u8>> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--owner=1000", "--group=1000", "--directory"]).arg(directory).arg(".");
    Ok(lab::succeeded(&mut tar)?.stdout)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("layer");
    std::fs::write(&path, bytes)?;
    Ok(lab::succeeded(Command::new("gzip").arg("--stdout").arg(&path))?.stdout)
}

fn configuration(layers: &[Vec<u8>]) -> Vec<u8> {
    let digests: Vec<String> =
        layers.iter().map(|layer| format!("sha256:{}", sha256(layer))).collect();
    json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/app:/bin", "GREETING=it's here"], "WorkingDir": "/app"},
        "rootfs": {"type": "layers", "diff_ids": digests},
    })
    .to_string()
    .into_bytes()
}

/// Writes what `docker save` would write.
pub(super) fn docker(layers: &[&Path], output: &Path) -> Result<()> {
    let layers = layers.iter().map(|path| layer(path)).collect::<Result<Vec<_>>>()?;
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name);
    let mut names = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let name = format!("{number}/layer.tar");
        std::fs::create_dir(at(&number.to_string()))?;
        std::fs::write(at(&name), layer)?;
        names.push(name);
    }
    std::fs::write(at("config.json"), configuration(&layers))?;
    let manifest = json!([{"Config": "config.json", "RepoTags": ["app:1"], "Layers": names}]);
    std::fs::write(at("manifest.json"), manifest.to_string())?;
    let mut tar = Command::new("tar");
    lab::run(tar.arg("--create").arg("--file").arg(output).arg("--directory").arg(at(".")).arg("."))
}

/// Writes an OCI layout with packed layers.
pub(super) fn oci(layers: &[&Path], output: &Path) -> Result<()> {
    let layers = layers.iter().map(|path| layer(path)).collect::<Result<Vec<_>>>()?;
    let blobs = output.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let put = |kind: &str, bytes: Vec<u8>| -> Result<Value> {
        let digest = sha256(&bytes);
        std::fs::write(blobs.join(&digest), &bytes)?;
        Ok(json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        }))
    };
    let config = put("config.v1+json", configuration(&layers))?;
    let packed = layers
        .iter()
        .map(|layer| put("layer.v1.tar+gzip", gzip(layer)?))
        .collect::<Result<Vec<_>>>()?;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": packed});
    let manifest = put("manifest.v1+json", manifest.to_string().into_bytes())?;
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    std::fs::write(output.join("index.json"), index.to_string())?;
    std::fs::write(output.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    Ok(())
}
