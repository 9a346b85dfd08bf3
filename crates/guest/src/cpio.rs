//! Writes the archive that the kernel unpacks as its first root file system (cpio "newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst).
//!
//! Takes entries one by one in the order in which they are to be unpacked; gives bytes. Owner is
//! always root, times are always `MTIME`, inode numbers count from 1: the same entries give the
//! same bytes. Never compresses, never reads a file.

use std::io::{self, Write};

/// 2019-12-31T00:00:00Z: the day before the guest's clock starts, so that nothing lies in the
/// guest's future.
pub const MTIME: u32 = 1_577_750_400;

/// `stat.st_mode` bits of a directory, a regular file and a symbolic link.
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

pub struct Writer<W: Write> {
    out: W,
    entries: u32,
    /// Bytes written so far; names and data are padded to multiples of four from the archive's
    /// start.
    position: u64,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Writer { out, entries: 0, position: 0 }
    }

    /// `path` without a leading slash; `permissions` are the lower twelve mode bits.
    pub fn directory(&mut self, path: &str, permissions: u32) -> io::Result<()> {
        self.entry(path, S_IFDIR | permissions & 0o7777, 2, &[])
    }

    pub fn file(&mut self, path: &str, permissions: u32, data: &[u8]) -> io::Result<()> {
        self.entry(path, S_IFREG | permissions & 0o7777, 1, data)
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, S_IFLNK | 0o777, 1, target.as_bytes())
    }

    /// Writes the end marker and hands the output back. Without it the archive is cut off.
    pub fn finish(mut self) -> io::Result<W> {
        self.header("TRAILER!!!", 0, 0, 1, 0)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, links: u32, data: &[u8]) -> io::Result<()> {
        if path.contains('\0') || path.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("cpio cannot name a file {path:?}"),
            ));
        }
        let size = u32::try_from(data.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{path}: 4 GB or more do not fit cpio newc"),
            )
        })?;
        self.entries += 1;
        self.header(path, self.entries, mode, links, size)?;
        self.put(data)?;
        self.pad()
    }

    fn header(
        &mut self,
        path: &str,
        inode: u32,
        mode: u32,
        links: u32,
        size: u32,
    ) -> io::Result<()> {
        let name_size = path.len() as u32 + 1;
        let mtime = if inode == 0 { 0 } else { MTIME };
        // magic, ino, mode, uid, gid, nlink, mtime, filesize, dev major and minor, rdev major and
        // minor, namesize, check
        let fields = [inode, mode, 0, 0, links, mtime, size, 0, 0, 0, 0, name_size, 0];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_one_file_is_the_documented_one() {
        let mut writer = Writer::new(Vec::new());
        writer.file("a/bc", 0o755, b"hello").unwrap();
        let bytes = writer.finish().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("07070100000001000081ed00000000000000000000000\u{31}"));
        assert_eq!(&text[54..62], "00000005", "file size");
        assert_eq!(&text[94..102], "00000005", "name size counts the NUL");
        // 110 bytes of header and 5 of name end at 115; data starts at 116, 5 bytes long; the
        // trailer starts at 124.
        assert_eq!(&bytes[110..116], b"a/bc\0\0");
        assert_eq!(&bytes[116..124], b"hello\0\0\0");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(&bytes[234..244], b"TRAILER!!!");
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn the_same_entries_give_the_same_bytes_and_inodes_differ() {
        let write = || {
            let mut writer = Writer::new(Vec::new());
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
    fn names_that_cpio_cannot_hold_are_refused() {
        assert!(Writer::new(Vec::new()).file("a\0b", 0o644, b"").is_err());
        assert!(Writer::new(Vec::new()).file("", 0o644, b"").is_err());
    }
}
