//! Finds the layers of an image and lays them over each other.
//!
//! Input: the files of an image (`Bag`): those of `docker save` (`manifest.json`), or an OCI layout
//! (`index.json`, OCI image specification, image-layout.md). Output: the image. Every digest that
//! the image has is compared: of a blob, of a configuration, of an unpacked layer.

use super::bag::Bag;
use super::{ContainerImage, layer, packing};
use crate::rootfs::{Budget, RootFs};
use anyhow::{Context, Result, bail, ensure};
use image::sealed;
use oci_spec::image::{
    Arch, Descriptor, Digest as OciDigest, DigestAlgorithm, ImageConfiguration, ImageIndex,
    ImageManifest, MediaType, Os,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use std::str::FromStr;

const OF_DOCKER: &str = "manifest.json";
/// `docker save` also writes this file.
const BESIDE_IT: &str = "repositories";
const OF_OCI: &str = "index.json";
/// An index may name others. Real images have one within another.
const MOST_INDEXES: usize = 8;
/// overlayfs of Linux takes 500 layers.
const MOST_LAYERS: usize = 512;

/// The most bytes behind the end of a layer's tar archive. Tar fills its last record, by default of
/// 10 KB.
const MOST_PADDING: u64 = 1 << 20;

/// A row of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// A file of the image, and its digest if the image says it.
struct Blob {
    name: String,
    sha256: Option<String>,
}

/// The image in `bag`; `None` if the files are not those of an image.
///
/// # Errors
/// The image is damaged, or there are several, or it is for another processor.
pub(super) fn read(bag: &mut dyn Bag, budget: &mut Budget) -> Result<Option<ContainerImage>> {
    if let Some(text) = bag.text(OF_DOCKER)? {
        match serde_json::from_slice::<Vec<DockerImage>>(&text) {
            Ok(images) => return docker(images, bag, budget).map(Some),
            // A root file system may also have a file of this name.
            Err(error) if bag.file(BESIDE_IT)?.is_some() => return Err(error).context(OF_DOCKER),
            Err(_) => {}
        }
    }
    match bag.text(OF_OCI)? {
        Some(text) if bag.text("oci-layout")?.is_some() => oci(&text, bag, budget).map(Some),
        _ => Ok(None),
    }
}

fn docker(
    images: Vec<DockerImage>,
    bag: &mut dyn Bag,
    budget: &mut Budget,
) -> Result<ContainerImage> {
    let names: Vec<&str> = images
        .iter()
        .map(|image| match &image.repo_tags {
            Some(tags) if !tags.is_empty() => tags[0].as_str(),
            _ => image.config.as_str(),
        })
        .collect();
    ensure!(!images.is_empty(), "{OF_DOCKER} names no image");
    ensure!(
        images.len() == 1,
        "the archive has {} images ({}): save one of them",
        images.len(),
        names.join(", ")
    );
    let plain = |name: String| Blob { name, sha256: None };
    let DockerImage { config, layers, .. } = images.into_iter().next().context("no image")?;
    image(&plain(config), layers.into_iter().map(plain).collect(), bag, budget)
}

fn oci(index: &[u8], bag: &mut dyn Bag, budget: &mut Budget) -> Result<ContainerImage> {
    let index: ImageIndex = serde_json::from_slice(index).context(OF_OCI)?;
    let mut pending = index.manifests().clone();
    let mut found: Vec<Descriptor> = Vec::new();
    let mut indexes = 0;
    while let Some(descriptor) = pending.pop() {
        match descriptor.media_type() {
            MediaType::ImageIndex => {
                indexes += 1;
                ensure!(indexes <= MOST_INDEXES, "more than {MOST_INDEXES} indexes in the image");
                pending.extend(index_at(&descriptor, bag)?.manifests().iter().cloned());
            }
            MediaType::Other(kind) if kind == DOCKER_LIST => {
                indexes += 1;
                ensure!(indexes <= MOST_INDEXES, "more than {MOST_INDEXES} indexes in the image");
                pending.extend(index_at(&descriptor, bag)?.manifests().iter().cloned());
            }
            _ if is_for_this_guest(&descriptor) => found.push(descriptor),
            _ => {}
        }
    }
    found.dedup_by(|one, other| one.digest() == other.digest());
    match &*found {
        [only] => of_manifest(only, bag, budget),
        [] => bail!("the image has nothing for amd64 on linux"),
        several => {
            let names: Vec<String> = several.iter().map(named).collect();
            bail!("the layout has {} images ({}): keep one", several.len(), names.join(", "))
        }
    }
}

/// What registries of Docker call an index.
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

fn index_at(descriptor: &Descriptor, bag: &mut dyn Bag) -> Result<ImageIndex> {
    let blob = blob(descriptor)?;
    serde_json::from_slice(&whole(&blob, bag)?).with_context(|| blob.name)
}

/// A name that people gave the image, or its digest.
fn named(descriptor: &Descriptor) -> String {
    let name = descriptor
        .annotations()
        .as_ref()
        .and_then(|notes| notes.get("org.opencontainers.image.ref.name"));
    name.cloned().unwrap_or_else(|| descriptor.digest().to_string())
}

/// Descriptions of how an image was built have the platform `unknown/unknown`.
fn is_for_this_guest(descriptor: &Descriptor) -> bool {
    descriptor.platform().as_ref().is_none_or(|platform| {
        *platform.architecture() == Arch::Amd64 && *platform.os() == Os::Linux
    })
}

fn of_manifest(
    descriptor: &Descriptor,
    bag: &mut dyn Bag,
    budget: &mut Budget,
) -> Result<ContainerImage> {
    let at = blob(descriptor)?;
    let manifest: ImageManifest =
        serde_json::from_slice(&whole(&at, bag)?).with_context(|| at.name)?;
    let layers = manifest.layers().iter().map(blob).collect::<Result<Vec<_>>>()?;
    image(&blob(manifest.config())?, layers, bag, budget)
}

fn blob(descriptor: &Descriptor) -> Result<Blob> {
    let digest = descriptor.digest();
    ensure!(
        *digest.algorithm() == DigestAlgorithm::Sha256,
        "{digest}: Kernlane reads blobs whose digest is a SHA-256"
    );
    Ok(Blob {
        name: format!("blobs/sha256/{}", digest.digest()),
        sha256: Some(digest.digest().to_owned()),
    })
}

fn opened<'a>(blob: &Blob, bag: &'a mut dyn Bag) -> Result<Box<dyn Read + 'a>> {
    let name = &blob.name;
    bag.file(name)?.with_context(|| format!("{name}: the image lacks this file"))
}

/// A text of the image, when its digest is right.
fn whole(blob: &Blob, bag: &mut dyn Bag) -> Result<Vec<u8>> {
    let name = &blob.name;
    let bytes = bag.text(name)?.with_context(|| format!("{name}: the image lacks this file"))?;
    if let Some(expected) = &blob.sha256 {
        same(name, expected, &sealed::sha256(&bytes))?;
    }
    Ok(bytes)
}

fn same(name: &str, expected: &str, found: &str) -> Result<()> {
    ensure!(
        expected == found,
        "{name}: damaged: its SHA-256 is {found}, and the image says {expected}"
    );
    Ok(())
}

/// The image with this configuration and these layers, the lowest first.
fn image(
    configuration: &Blob,
    layers: Vec<Blob>,
    bag: &mut dyn Bag,
    budget: &mut Budget,
) -> Result<ContainerImage> {
    let name = &configuration.name;
    let text = whole(configuration, bag)?;
    let read: ImageConfiguration =
        serde_json::from_slice(&text).with_context(|| name.to_owned())?;
    ensure!(
        *read.architecture() == Arch::Amd64 && *read.os() == Os::Linux,
        "the image is for {} on {}, and the guest is amd64 on linux",
        read.architecture(),
        read.os()
    );
    ensure!(layers.len() <= MOST_LAYERS, "{} layers: at most {MOST_LAYERS}", layers.len());
    let digests = read.rootfs().diff_ids();
    ensure!(
        digests.len() == layers.len(),
        "{name}: {} digests of layers, and the image has {} layers",
        digests.len(),
        layers.len()
    );
    let mut tree = RootFs::default();
    for (layer, digest) in layers.iter().zip(digests) {
        let expected = OciDigest::from_str(digest)
            .ok()
            .filter(|digest| *digest.algorithm() == DigestAlgorithm::Sha256)
            .with_context(|| format!("{name}: {digest:?} is no SHA-256 of a layer"))?;
        lay(layer, expected.digest(), bag, &mut tree, budget)
            .with_context(|| format!("the layer {}", layer.name))?;
    }
    let config = read.config().clone().unwrap_or_default();
    let environment = config.env().clone().unwrap_or_default();
    Ok(ContainerImage {
        tree,
        environment: environment
            .iter()
            .map(|text| variable(text).with_context(|| name.to_owned()))
            .collect::<Result<_>>()?,
        working_directory: config.working_dir().clone().filter(|path| !path.is_empty()),
    })
}

/// `NAME=VALUE`, such that a shell can export it.
fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    ensure!(is_name && !value.contains('\0'), "{text:?} is not a variable that a shell can export");
    Ok((name.to_owned(), value.to_owned()))
}

fn lay(
    blob: &Blob,
    unpacked_sha256: &str,
    bag: &mut dyn Bag,
    tree: &mut RootFs,
    budget: &mut Budget,
) -> Result<()> {
    let mut stored = Hashing::new(opened(blob, bag)?);
    let mut plain = Hashing::new(packing::plain(&mut stored)?);
    layer::apply(&mut plain, tree, budget)?;
    // A tar archive may have padding behind its end.
    let padding = io::copy(&mut plain.by_ref().take(MOST_PADDING + 1), &mut io::sink())
        .context("reading the layer to its end")?;
    ensure!(padding <= MOST_PADDING, "more than {MOST_PADDING} bytes behind the tar archive");
    let found = plain.finish();
    same("unpacked", unpacked_sha256, &found)?;
    if let Some(expected) = &blob.sha256 {
        io::copy(&mut stored, &mut io::sink()).context("reading the layer to its end")?;
        same("stored", expected, &stored.finish())?;
    }
    Ok(())
}

/// A stream whose SHA-256 is known at its end.
struct Hashing<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Hashing<R> {
    fn new(from: R) -> Hashing<R> {
        Hashing { from, hash: Sha256::new() }
    }

    fn finish(self) -> String {
        sealed::hex(&self.hash.finalize())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}
