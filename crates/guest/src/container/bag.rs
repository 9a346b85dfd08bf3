//! The files that an image consists of, by name: in a directory, or in a tar archive.
//!
//! Input: a directory, or an archive that can be read at any place. Output: the bytes of one of its
//! files. A name or a link that leaves the image is refused.

use crate::rootfs::clean;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The most bytes of a manifest, an index or a configuration.
const MOST_TEXT: u64 = 16 << 20;
/// The most links from one file to the next. `docker save` wrote one for a layer that it had
/// before.
const MOST_LINKS: usize = 8;

pub(super) trait Bag {
    /// The file `name`; `None` if there is none.
    fn file(&mut self, name: &str) -> Result<Option<Box<dyn Read + '_>>>;

    /// The whole file `name`, which is a text.
    fn text(&mut self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(MOST_TEXT + 1)
            .read_to_end(&mut bytes)
            .with_context(|| format!("{name}: reading it"))?;
        ensure!(bytes.len() as u64 <= MOST_TEXT, "{name}: it has more than {} MB", MOST_TEXT >> 20);
        Ok(Some(bytes))
    }
}

pub(super) struct DirectoryBag {
    /// Without links.
    directory: PathBuf,
}

impl DirectoryBag {
    pub(super) fn new(directory: &Path) -> Result<DirectoryBag> {
        Ok(DirectoryBag { directory: directory.canonicalize()? })
    }
}

impl Bag for DirectoryBag {
    fn file(&mut self, name: &str) -> Result<Option<Box<dyn Read + '_>>> {
        let path = self.directory.join(clean(name)?);
        if std::fs::symlink_metadata(&path).is_err() {
            return Ok(None);
        }
        let real = path.canonicalize().with_context(|| format!("{name}: reading it"))?;
        ensure!(
            real.starts_with(&self.directory),
            "{name}: a link that leaves the image, to {}",
            real.display()
        );
        ensure!(real.is_file(), "{name}: it is not a file");
        Ok(Some(Box::new(File::open(real).with_context(|| format!("{name}: reading it"))?)))
    }
}

enum Place {
    At { offset: u64, size: u64 },
    Link(String),
}

pub(super) struct ArchiveBag<R> {
    archive: R,
    files: BTreeMap<String, Place>,
}

impl<R: Read + Seek> ArchiveBag<R> {
    /// Lists the archive's files.
    pub(super) fn new(mut archive: R) -> Result<ArchiveBag<R>> {
        let mut files = BTreeMap::new();
        let mut entries = tar::Archive::new(&mut archive);
        for entry in entries.entries_with_seek().context("reading the tar archive")? {
            let entry = entry.context("reading the tar archive")?;
            // The files of an image have plain names. Whether others are in order is seen when the
            // archive turns out to be a root file system.
            let Ok(name) = String::from_utf8(entry.path_bytes().into_owned()) else { continue };
            let Ok(name) = clean(&name) else { continue };
            let linked = || {
                let target = entry.link_name_bytes()?;
                String::from_utf8(target.into_owned()).ok()
            };
            let place = match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    Place::At { offset: entry.raw_file_position(), size: entry.size() }
                }
                tar::EntryType::Link => match linked() {
                    Some(target) => Place::Link(target),
                    None => continue,
                },
                tar::EntryType::Symlink => match linked() {
                    Some(target) if target.starts_with('/') => Place::Link(format!("../{target}")),
                    Some(target) => match beside(&name, &target) {
                        Some(target) => Place::Link(target),
                        None => Place::Link(format!("../{target}")),
                    },
                    None => continue,
                },
                _ => continue,
            };
            files.insert(name, place);
        }
        Ok(ArchiveBag { archive, files })
    }
}

/// The path that a link at `name` means; `None` if it leaves the archive.
fn beside(name: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

impl<R: Read + Seek> Bag for ArchiveBag<R> {
    fn file(&mut self, name: &str) -> Result<Option<Box<dyn Read + '_>>> {
        let mut found = clean(name)?;
        for _ in 0..MOST_LINKS {
            match self.files.get(&found) {
                None if found == name => return Ok(None),
                None => bail!("{name}: a link to {found:?}, which the archive lacks"),
                Some(Place::Link(target)) => {
                    found = clean(target)
                        .with_context(|| format!("{name}: a link that leaves the image"))?;
                }
                Some(&Place::At { offset, size }) => {
                    self.archive.seek(SeekFrom::Start(offset))?;
                    return Ok(Some(Box::new(self.archive.by_ref().take(size))));
                }
            }
        }
        bail!("{name}: too many links")
    }
}
