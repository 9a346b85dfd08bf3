//! Reads the boot image of an x86 kernel (Documentation/arch/x86/boot.rst): which kernel is
//! compressed inside it.
//!
//! Input: the bytes of a bzImage (a distribution's `vmlinuz`). Output: the kernel's release, and
//! the build id of the vmlinux in its payload. The bzImage's own ELF note has another build id,
//! that of the decompressor. This module never boots anything.

use anyhow::{Context, Result, bail, ensure};
use object::Object;
use std::io::Read;

/// What a boot image says about its kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BzImage {
    /// For example `6.12.117-kernlane`.
    pub release: String,
    /// The build id of the vmlinux that it was made from, lower-case hex.
    pub build_id: String,
}

/// The largest vmlinux, in bytes. No kernel is larger, so a damaged payload gets no more memory.
const MAX_VMLINUX: u64 = 1 << 30;
const MAX_RATIO: u64 = 256;
/// Memory that unpacking xz may take: twice what the kernel's build asks for (scripts/xz_wrap.sh).
const XZ_MEMORY: u64 = 256 << 20;

impl BzImage {
    /// Reads the header and unpacks the kernel as far as its notes need.
    ///
    /// # Errors
    /// `image` is not a boot image, or it is damaged.
    pub fn parse(image: &[u8]) -> Result<BzImage> {
        let header = BootHeader::new(image)?;
        Ok(BzImage { release: header.release()?, build_id: vmlinux_build_id(header.payload()?)? })
    }

    /// The vmlinux in a boot image, without symbols.
    ///
    /// # Errors
    /// `image` is not a boot image, or it is damaged.
    pub fn unpack(image: &[u8]) -> Result<Vec<u8>> {
        unpack_payload(BootHeader::new(image)?.payload()?)
    }
}

struct BootHeader<'a> {
    image: &'a [u8],
}

impl<'a> BootHeader<'a> {
    fn new(image: &'a [u8]) -> Result<BootHeader<'a>> {
        let header = BootHeader { image };
        ensure!(
            image.get(0x202..0x206) == Some(b"HdrS".as_slice()),
            "not a boot image of an x86 kernel (no HdrS at 0x202)"
        );
        ensure!(
            header.u16(0x206)? >= 0x0208,
            "boot protocol {:#06x}: boot images before 2.08 do not say where the kernel is",
            header.u16(0x206)?
        );
        Ok(header)
    }

    /// `kernel_version` (0x20e) plus 0x200 is the offset of a NUL-terminated "RELEASE (builder)
    /// #…".
    fn release(&self) -> Result<String> {
        let at = usize::from(self.u16(0x20e)?) + 0x200;
        let text = self.image.get(at..).context("the version string lies outside of the file")?;
        let text = text.split(|byte| *byte == 0 || *byte == b' ').next().unwrap_or_default();
        ensure!(
            !text.is_empty() && text.len() <= 200 && text.is_ascii(),
            "the version string is damaged"
        );
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    /// The compressed kernel. `payload_offset` (0x248) counts from the protected-mode code. In
    /// front of that code lie the boot sector and the `setup_sects` (0x1f1) sectors of real-mode
    /// code.
    fn payload(&self) -> Result<&'a [u8]> {
        let setup_sectors = match self.u8(0x1f1)? {
            0 => 4,
            sectors => usize::from(sectors),
        };
        let start = (setup_sectors + 1) * 512 + self.u32(0x248)? as usize;
        let length = self.u32(0x24c)? as usize;
        self.image
            .get(start..start.saturating_add(length))
            .context("the compressed kernel lies outside of the file (cut off?)")
    }

    fn u8(&self, at: usize) -> Result<u8> {
        self.image.get(at).copied().context("the file is cut off in its header")
    }

    fn u16(&self, at: usize) -> Result<u16> {
        Ok(u16::from_le_bytes([self.u8(at)?, self.u8(at + 1)?]))
    }

    fn u32(&self, at: usize) -> Result<u32> {
        Ok(u32::from(self.u16(at)?) | u32::from(self.u16(at + 2)?) << 16)
    }
}

/// The payload is a compressed vmlinux without symbols, with its relocations behind it. Its size
/// follows in four bytes, which for gzip are part of the format.
fn unpack_payload(payload: &[u8]) -> Result<Vec<u8>> {
    let most = MAX_VMLINUX.min(MAX_RATIO * payload.len() as u64);
    let reader: Box<dyn Read + '_> = match payload {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::GzDecoder::new(payload)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Box::new(zstd::stream::read::Decoder::new(payload)?.single_frame())
        }
        [0xfd, b'7', b'z', b'X', b'Z', ..] => {
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, 0)?;
            Box::new(liblzma::read::XzDecoder::new_stream(payload, stream))
        }
        [0x02, 0x21, 0x4c, 0x18, blocks @ ..] => {
            Box::new(std::io::Cursor::new(lz4_legacy(blocks, most)?))
        }
        [0x7f, b'E', b'L', b'F', ..] => Box::new(payload),
        _ => bail!(
            "the kernel in the boot image is compressed in a way that Kernlane does not support; \
             it supports gzip, zstd, xz and lz4"
        ),
    };
    let mut vmlinux = Vec::new();
    reader.take(most + 1).read_to_end(&mut vmlinux).context("the compressed kernel is damaged")?;
    ensure!(vmlinux.len() as u64 <= most, "the compressed kernel is damaged: it has no end");
    Ok(vmlinux)
}

fn vmlinux_build_id(payload: &[u8]) -> Result<String> {
    let vmlinux = unpack_payload(payload)?;
    let elf = object::File::parse(&*vmlinux)
        .context("the kernel in the boot image is not an ELF file")?;
    let id = elf.build_id().context("the notes of the kernel in the boot image cannot be read")?;
    let id = id.context("the kernel in the boot image has no build id")?;
    Ok(image::BuildId::from_bytes(id).0)
}

/// LZ4's legacy frame (doc/lz4_Frame_format.md, "Legacy frame") behind its magic: blocks, each
/// behind its packed size, of 8 MB but for the last.
fn lz4_legacy(mut blocks: &[u8], most: u64) -> Result<Vec<u8>> {
    const BLOCK: usize = 8 << 20;
    let mut unpacked = Vec::new();
    // A rest shorter than a block's size and one byte is the size of the whole kernel, or nothing.
    while let Some((size, rest)) =
        blocks.split_first_chunk::<4>().filter(|(_, rest)| !rest.is_empty())
    {
        let size = u32::from_le_bytes(*size) as usize;
        let block = rest
            .get(..size)
            .context("the compressed kernel is damaged: a block lies outside of it")?;
        unpacked.extend(
            lz4_flex::block::decompress(block, BLOCK)
                .context("the compressed kernel is damaged")?,
        );
        ensure!(unpacked.len() as u64 <= most, "the compressed kernel is damaged: it has no end");
        blocks = &rest[size..];
    }
    Ok(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with one section: a build-id note.
    fn vmlinux(id: &[u8; 20]) -> Vec<u8> {
        use object::write::{Object as Writer, StandardSegment};
        let mut writer = Writer::new(
            object::BinaryFormat::Elf,
            object::Architecture::X86_64,
            object::Endianness::Little,
        );
        let segment = writer.segment_name(StandardSegment::Data).to_vec();
        let section =
            writer.add_section(segment, b".note.gnu.build-id".to_vec(), object::SectionKind::Note);
        let mut note = Vec::new();
        for word in [4u32, 20, 3] {
            note.extend(word.to_le_bytes());
        }
        note.extend(b"GNU\0");
        note.extend(id);
        writer.append_section_data(section, &note, 4);
        writer.write().unwrap()
    }

    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0u8; 1024];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        image[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        image[0x300..0x30c].copy_from_slice(b"6.12-x (me) ");
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend([0; 16]);
        image.extend(payload);
        image
    }

    fn zstd_image() -> Vec<u8> {
        let mut payload = zstd::encode_all(&vmlinux(&[0xab; 20])[..], 1).unwrap();
        payload.extend(1234u32.to_le_bytes());
        image(&payload)
    }

    #[test]
    fn the_build_id_is_found_with_every_compression() {
        let expected = BzImage { release: "6.12-x".into(), build_id: "ab".repeat(20) };
        assert_eq!(BzImage::parse(&zstd_image()).unwrap(), expected);
        let mut gzip = Vec::new();
        flate2::bufread::GzEncoder::new(&vmlinux(&[0xab; 20])[..], flate2::Compression::fast())
            .read_to_end(&mut gzip)
            .unwrap();
        assert_eq!(BzImage::parse(&image(&gzip)).unwrap(), expected);
        let mut xz = Vec::new();
        liblzma::read::XzEncoder::new(&vmlinux(&[0xab; 20])[..], 0).read_to_end(&mut xz).unwrap();
        xz.extend(1234u32.to_le_bytes());
        assert_eq!(BzImage::parse(&image(&xz)).unwrap(), expected);
        assert_eq!(BzImage::parse(&image(&lz4())).unwrap(), expected);
    }

    fn lz4() -> Vec<u8> {
        let block = lz4_flex::block::compress(&vmlinux(&[0xab; 20]));
        let mut payload = b"\x02\x21\x4c\x18".to_vec();
        payload.extend((block.len() as u32).to_le_bytes());
        payload.extend(block);
        payload.extend(1234u32.to_le_bytes());
        payload
    }

    #[test]
    fn files_that_are_not_boot_images_are_refused() {
        assert!(BzImage::parse(b"").is_err());
        assert!(BzImage::parse(&[0; 4096]).is_err());
        assert!(
            format!("{:#}", BzImage::parse(&image(b"BZh9")).unwrap_err())
                .contains("compressed in a way")
        );
    }

    /// Some kilobytes that unpack to much more than any kernel would.
    #[test]
    fn a_payload_without_end_is_refused_before_it_fills_the_memory() {
        let zeros = vec![0; 32 << 20];
        let mut xz = Vec::new();
        liblzma::read::XzEncoder::new(&zeros[..], 0).read_to_end(&mut xz).unwrap();
        let mut lz4 = b"\x02\x21\x4c\x18".to_vec();
        for block in zeros.chunks(8 << 20) {
            let block = lz4_flex::block::compress(block);
            lz4.extend((block.len() as u32).to_le_bytes());
            lz4.extend(block);
        }
        for payload in [zstd::encode_all(&zeros[..], 1).unwrap(), xz] {
            let error = BzImage::parse(&image(&payload)).unwrap_err();
            assert!(format!("{error:#}").contains("it has no end"), "{error:#}");
        }
        // LZ4 never packs better than 255 to 1.
        assert!(BzImage::parse(&image(&lz4)).is_err());
    }

    #[test]
    fn an_image_that_is_cut_off_is_refused() {
        for image in [zstd_image(), image(&lz4())] {
            assert!(BzImage::parse(&image).is_ok());
            for length in 0..image.len() {
                assert!(BzImage::parse(&image[..length]).is_err(), "{length} bytes");
            }
        }
    }

    #[test]
    fn a_damaged_image_gives_an_error_or_a_build_id() {
        let good = [zstd_image(), image(&lz4())];
        let (mut state, mut same) = (3u64, 0);
        for round in 0..3000 {
            let mut bytes = good[round % 2].clone();
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] ^= (state >> 20) as u8;
            if let Ok(found) = BzImage::parse(&bytes) {
                let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
                assert!(!found.build_id.is_empty() && found.build_id.chars().all(hex));
                assert!(!found.release.is_empty());
                same += usize::from(found.build_id == "ab".repeat(20));
            }
        }
        assert!(same > 1000, "{same}: most bytes of the image say nothing of the build id");
    }
}
