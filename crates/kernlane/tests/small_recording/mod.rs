//! A recording of two instructions of a kernel, for tests of messages and of standard output.

use std::path::Path;
use trace::{RecordingHeader, RecordingWriter, RunAddr, StreamEvent, Translation, TranslationId};

/// Makes the directory of a recording: the two instructions, executed `times` times, and symbols
/// for them.
pub(crate) fn write(directory: &Path, header: &RecordingHeader, times: usize) {
    let mut writer = RecordingWriter::new(Vec::new(), header).unwrap();
    let translation = Translation {
        id: TranslationId(0),
        addr: RunAddr(0xffff_ffff_8100_0000),
        lengths: [1, 2].into(),
        code: [0x90, 0xeb, 0xfd].into(),
    };
    writer.translations(&[translation]).unwrap();
    let mut words = Vec::new();
    (0..times).for_each(|_| StreamEvent::Executed(TranslationId(0)).append_to(&mut words));
    writer.stream(&words).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::write(directory.join("trace.klt"), writer.end().unwrap().0).unwrap();
    std::fs::write(directory.join("System.map"), "ffffffff81000000 T _text\n").unwrap();
}
