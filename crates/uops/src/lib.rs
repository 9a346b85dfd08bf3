//! Turns x86-64 instructions into the uops that a simulated core executes.
//!
//! Input: the bytes of instructions that follow one another, and a table of uops of a processor.
//! Output: [`sim::core::Uop`]s. The decoder says what an instruction reads and writes, and what it
//! loads and stores. Ports, latencies and slots come from the table. The tables in `tables/` are
//! made from LLVM's scheduling models; the head of each table says how. An instruction that a table
//! lacks gets a documented default, and is reported by name.
//!
//! ```
//! use kernlane_uops::UopTable;
//! use sim::core::UopLatencies;
//!
//! let table = UopTable::find("znver4")?;
//! // add rax, [rbx]; cmp rax, rcx; jne
//! let code: [&[u8]; 3] = [&[0x48, 0x03, 0x03], &[0x48, 0x39, 0xc8], &[0x75, 0x00]];
//! let mut uops = Vec::new();
//! let latencies =
//!     UopLatencies { atomic: 18, vector_load: 3, scaled_load: 1, three_part_address: 2 };
//! let made = table.translate(0x1000, &code, latencies, &mut uops);
//! // The load and the addition are one slot. The comparison and the jump are one uop.
//! let counts: Vec<_> = made.iter().map(|it| (it.uops, it.slots)).collect();
//! assert_eq!(counts, [(2, 1), (1, 1), (0, 0)]);
//! # Ok::<(), kernlane_uops::TableError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod class;
mod facts;
mod fusion;
mod registers;
mod table;
mod translate;

pub use table::{TableError, UopTable};
