//! Writes the archive that the kernel unpacks as its first root file system (cpio "newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst), and reads such an archive.
//!
//! Input: entries, one by one, in the order in which the kernel unpacks them. Output: bytes. The
//! owner is always root, the time is always `MTIME`, and inode numbers count from 1. Hard links
//! share the number, and the first one has the data. Equal entries give equal bytes. This module
//! never compresses and never reads a file.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// 2019-12-31T00:00:00Z, the day before the guest's clock starts. No file is in the guest's future.
pub(crate) const MTIME: u32 = 1_577_750_400;

/// `stat.st_mode` bits of a directory, a regular file and a symbolic link.
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

pub(crate) struct CpioWriter<W: Write> {
    out: W,
    entries: u32,
    /// The number of bytes written. Names and data are padded to multiples of four, counted from
    /// the archive's start.
    position: u64,
    /// The inode numbers of files with several links.
    linked: HashMap<*const u8, u32>,
}

/// The content of an entry's header, in addition to the path.
struct EntryFacts {
    inode: u32,
    mode: u32,
    links: u32,
    size: u32,
    device: [u32; 2],
}

impl<W: Write> CpioWriter<W> {
    pub(crate) fn new(out: W) -> Self {
        CpioWriter { out, entries: 0, position: 0, linked: HashMap::new() }
    }

    /// `path` has no leading slash. `permissions` are the lower twelve mode bits.
    pub(crate) fn directory(&mut self, path: &str, permissions: u32) -> io::Result<()> {
        self.entry(path, S_IFDIR | permissions & 0o7777, 2, [0; 2], &[])
    }

    pub(crate) fn file(&mut self, path: &str, permissions: u32, data: &[u8]) -> io::Result<()> {
        self.entry(path, S_IFREG | permissions & 0o7777, 1, [0; 2], data)
    }

    /// One of `links` paths of a file. `key` is the same for all paths of the file, and another for
    /// other files.
    pub(crate) fn linked_file(
        &mut self,
        path: &str,
        permissions: u32,
        data: &[u8],
        key: *const u8,
        links: u32,
    ) -> io::Result<()> {
        let mode = S_IFREG | permissions & 0o7777;
        match self.linked.get(&key) {
            Some(&inode) => {
                check_name(path)?;
                self.header(path, &EntryFacts { inode, mode, links, size: 0, device: [0; 2] })
            }
            None => {
                self.linked.insert(key, self.entries + 1);
                self.entry(path, mode, links, [0; 2], data)
            }
        }
    }

    /// A pipe or a device. `mode` also has the kind.
    pub(crate) fn special(
        &mut self,
        path: &str,
        mode: u32,
        major: u32,
        minor: u32,
    ) -> io::Result<()> {
        self.entry(path, mode, 1, [major, minor], &[])
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, S_IFLNK | 0o777, 1, [0; 2], target.as_bytes())
    }

    /// Writes the end marker and returns the output. Without the marker the archive is incomplete.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        let trailer = EntryFacts { inode: 0, mode: 0, links: 1, size: 0, device: [0; 2] };
        self.header("TRAILER!!!", &trailer)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        links: u32,
        device: [u32; 2],
        data: &[u8],
    ) -> io::Result<()> {
        check_name(path)?;
        let size = u32::try_from(data.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{path}: 4 GB or more do not fit cpio newc"),
            )
        })?;
        self.entries += 1;
        let inode = self.entries;
        self.header(path, &EntryFacts { inode, mode, links, size, device })?;
        self.put(data)?;
        self.pad()
    }

    fn header(&mut self, path: &str, entry: &EntryFacts) -> io::Result<()> {
        let EntryFacts { inode, mode, links, size, device: [major, minor] } = *entry;
        let name_size = path.len() as u32 + 1;
        let mtime = if inode == 0 { 0 } else { MTIME };
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, dev major and minor, rdev major and
        // minor, namesize, check
        let fields = [inode, mode, 0, 0, links, mtime, size, 0, 0, major, minor, name_size, 0];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        self.put(header.as_bytes())?;
        self.put(path.as_bytes())?;
        self.put(b"\0")?;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.position += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = (4 - self.position % 4) % 4;
        self.put(&[0; 3][..missing as usize])
    }
}

fn check_name(path: &str) -> io::Result<()> {
    if path.contains('\0') || path.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cpio cannot name a file {path:?}"),
        ));
    }
    Ok(())
}

/// Bytes of an entry's header: a magic number and 13 hexadecimal numbers.
const HEADER: usize = 6 + 13 * 8;

/// The contents of an archive's regular files, by path.
///
/// # Errors
/// It is cut off or damaged.
pub(crate) fn files(archive: &[u8]) -> Result<BTreeMap<&str, &[u8]>> {
    let mut files = BTreeMap::new();
    let mut linked = HashMap::new();
    let mut at = 0;
    loop {
        let header = archive.get(at..at + HEADER).context("the archive is cut off")?;
        ensure!(header.starts_with(b"070701"), "the archive has no entry at byte {at}");
        let number = |place: usize| {
            let digits = header.get(6 + 8 * place..14 + 8 * place);
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let number = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
            number.with_context(|| format!("the entry at byte {at} of the archive has no number"))
        };
        let (inode, mode, size, length) = (number(0)?, number(1)?, number(6)?, number(11)?);
        let name = at + HEADER..at + HEADER + length as usize;
        let path = archive.get(name.clone()).context("the archive is cut off")?;
        let path = path.strip_suffix(b"\0").and_then(|path| std::str::from_utf8(path).ok());
        let path = path.with_context(|| format!("the entry at byte {at} has no name"))?;
        if path == "TRAILER!!!" {
            return Ok(files);
        }
        let begin = name.end.next_multiple_of(4);
        let end = begin + size as usize;
        let data = archive.get(begin..end).context("the archive is cut off")?;
        if mode & 0o170_000 == S_IFREG {
            let known = linked.entry(inode).or_insert(data);
            files.insert(path, if data.is_empty() { *known } else { data });
        }
        at = end.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_of_one_file_has_the_documented_bytes() {
        let mut writer = CpioWriter::new(Vec::new());
        writer.file("a/bc", 0o755, b"hello").unwrap();
        let bytes = writer.finish().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("07070100000001000081ed00000000000000000000000\u{31}"));
        assert_eq!(&text[54..62], "00000005", "file size");
        assert_eq!(&text[94..102], "00000005", "name size counts the NUL");
        // The header has 110 bytes and the name has 5, so both end at 115. The data has 5 bytes and
        // starts at 116. The trailer starts at 124.
        assert_eq!(&bytes[110..116], b"a/bc\0\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[234..244], b"TRAILER!!!");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn equal_entries_give_equal_bytes_and_different_inodes() {
        let write = || {
            let mut writer = CpioWriter::new(Vec::new());
            writer.directory("d", 0o755).unwrap();
            writer.symlink("d/l", "../x").unwrap();
            writer.finish().unwrap()
        };
        let bytes = write();
        assert_eq!(bytes, write());
        assert_eq!(&bytes[6..14], b"00000001");
        let second =
            bytes.windows(6).enumerate().filter(|(_, w)| *w == b"070701").nth(1).unwrap().0;
        assert_eq!(&bytes[second + 6..second + 14], b"00000002");
    }

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let mut writer = CpioWriter::new(Vec::new());
        let data = b"hello";
        writer.directory("d", 0o755).unwrap();
        writer.linked_file("d/a", 0o755, data, data.as_ptr(), 2).unwrap();
        writer.symlink("d/l", "../x").unwrap();
        writer.file("empty", 0o644, b"").unwrap();
        writer.linked_file("d/b", 0o755, data, data.as_ptr(), 2).unwrap();
        let bytes = writer.finish().unwrap();
        let read = files(&bytes).unwrap();
        let expected: [(&str, &[u8]); 3] = [("d/a", data), ("d/b", data), ("empty", b"")];
        assert_eq!(read, expected.into());
        for end in 0..bytes.len() - 4 {
            assert!(files(&bytes[..end]).is_err(), "{end}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x41;
            let _ = files(&damaged);
        }
    }

    #[test]
    fn hard_links_share_a_number_and_the_data_and_devices_have_theirs() {
        let mut writer = CpioWriter::new(Vec::new());
        let data = b"hello";
        writer.linked_file("a", 0o755, data, data.as_ptr(), 2).unwrap();
        writer.special("null", 0o020_666, 1, 3).unwrap();
        writer.linked_file("b", 0o755, data, data.as_ptr(), 2).unwrap();
        let bytes = writer.finish().unwrap();
        let headers: Vec<&str> = bytes
            .windows(6)
            .enumerate()
            .filter(|(_, window)| *window == b"070701")
            .map(|(at, _)| std::str::from_utf8(&bytes[at + 6..at + 110]).unwrap())
            .collect();
        let fields = |header: usize| -> Vec<u32> {
            let digits = headers[header].as_bytes().chunks(8);
            digits.map(|d| u32::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap()).collect()
        };
        // Inode, mode, links, size; the device of the second.
        let of = |header: usize| [0, 1, 4, 6].map(|field| fields(header)[field]);
        assert_eq!(of(0), [1, 0o100_755, 2, 5]);
        assert_eq!(of(2), [1, 0o100_755, 2, 0]);
        assert_eq!((of(1), fields(1)[9], fields(1)[10]), ([2, 0o020_666, 1, 0], 1, 3));
    }

    #[test]
    fn names_that_cpio_cannot_hold_are_refused() {
        assert!(CpioWriter::new(Vec::new()).file("a\0b", 0o644, b"").is_err());
        assert!(CpioWriter::new(Vec::new()).file("", 0o644, b"").is_err());
    }
}
