//! Boot images, workload files, container images and copied programs: what the targets use of
//! `kernlane-guest`.

use crate::elf::{self, ALLOC, SectionSpec};
use guest::{BzImage, Workload, examples};
use std::io::Read;

pub fn boot_images(bytes: &[u8]) {
    let _ = BzImage::parse(bytes);
}

pub fn workloads(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Workload::parse("workload", text);
}

/// The largest tree that a target may make, in bytes.
const LARGEST_TREE: u64 = 16 << 20;

pub fn container_images(bytes: &[u8]) {
    let _ = guest::try_image(bytes, LARGEST_TREE);
}

/// A layer over another, alone, in an archive of `docker save`, and in an OCI layout.
pub fn container_image_seeds() -> Vec<Vec<u8>> {
    let upper = examples::upper();
    let layers = [upper.clone()];
    vec![
        examples::archive(&examples::docker(&layers)),
        examples::archive(&examples::oci("amd64", &layers, examples::gzip)),
        examples::gzip(&upper),
        upper,
    ]
}

pub fn programs(bytes: &[u8]) {
    guest::try_program(bytes);
}

pub fn program_seeds() -> Vec<Vec<u8>> {
    vec![
        examples::dynamic_program("/lib64/ld-linux-x86-64.so.2", &["libc.so.6", "libm.so.6"]),
        b"#!/usr/bin/env -S python3 -u\n".to_vec(),
    ]
}

pub fn workload_seeds() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("../../workloads/files.toml").to_vec(),
        include_bytes!("../../workloads/web.toml").to_vec(),
        b"about = 'x'\nimage = 'app.tar'\ncopy = ['./build:/opt/app', 'a:/b/']\nmemory = 512\n\
            set-up = ''\nrun = 'x'\ncheck = 'y'\n"
            .to_vec(),
    ]
}

/// A kernel in each compression that is read. The boot sector and one sector of real-mode code
/// (Documentation/arch/x86/boot.rst) stand in front of the payload.
pub fn boot_image_seeds() -> Vec<Vec<u8>> {
    let notes = SectionSpec {
        name: elf::NOTES.to_owned(),
        address: 0x1000,
        flags: ALLOC,
        bytes: elf::build_id_note(),
    };
    let kernel = elf::executable(&[notes], &[]);
    let payloads = [
        kernel.clone(),
        zstd::bulk::compress(&kernel, 1).expect("zstd compresses anything"),
        packed(flate2::read::GzEncoder::new(&*kernel, flate2::Compression::best())),
        packed(liblzma::read::XzEncoder::new(&*kernel, 6)),
        lz4(&kernel),
    ];
    payloads.map(|payload| boot_image(&payload)).to_vec()
}

fn packed(mut encoder: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    encoder.read_to_end(&mut bytes).expect("bytes can be packed");
    bytes
}

fn boot_image(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 1024];
    image[0x1f1] = 1;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
    image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    image[0x300..0x30c].copy_from_slice(b"6.12-x (me) ");
    image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    image.extend(payload);
    image
}

/// LZ4's legacy frame: one block of literals only.
fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut block = vec![0xf0];
    let mut rest = bytes.len() - 15;
    while rest >= 255 {
        block.push(255);
        rest -= 255;
    }
    block.push(rest as u8);
    block.extend(bytes);
    [&[0x02, 0x21, 0x4c, 0x18][..], &(block.len() as u32).to_le_bytes(), &block].concat()
}
