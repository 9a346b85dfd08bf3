//! Misses by cache size and associativity, for a terminal.
//!
//! Input: the misses of each cache. Output: text. Counts nothing.

use host::table::TextTable;
use memory::sizes::{Holds, Sizes};
use papers::rosenblum;
use std::fmt::Write as _;

/// A table for each kind of cache.
pub fn text(sizes: &Sizes) -> String {
    let all = sizes.kernel_instructions + sizes.user_instructions;
    let mut text = format!(
        "workload {}, kernel {}, seed {}\n{all} instructions, {} of them the kernel's; LRU; self \
         and other: who had evicted the line\n",
        sizes.workload, sizes.kernel, sizes.seed, sizes.kernel_instructions
    );
    if sizes.cpus > 1 {
        let _ = writeln!(
            text,
            "{} CPUs, each with caches of its own, misses of all together; the table of several \
             CPUs has their data caches",
            sizes.cpus
        );
    }
    for (holds, title) in [
        (Holds::Instructions, "instruction caches"),
        (Holds::Data, "data caches"),
        (Holds::Both, "unified caches, of all references"),
    ] {
        let mut table = TextTable::new(&[
            "size",
            "ways",
            "KERN cold",
            "KERN-self",
            "KERN-other",
            "USER cold",
            "USER-self",
            "USER-other",
            "kernel /1000",
            "all /1000",
        ]);
        let mut any = false;
        for cache in sizes.caches.iter().filter(|cache| cache.holds == holds) {
            any = true;
            let (kernel, user) = (cache.kernel, cache.user);
            let counts = [kernel.cold, kernel.own, kernel.other, user.cold, user.own, user.other];
            let mut cells = vec![format!("{} KB", cache.size >> 10), cache.ways.to_string()];
            cells.extend(counts.map(|count| count.to_string()));
            cells.push(per_thousand(kernel.total(), sizes.kernel_instructions));
            cells.push(per_thousand(kernel.total() + user.total(), all));
            table.push(cells);
        }
        if any {
            let _ = write!(text, "\n{title}, lines of {} bytes\n{}", holds.line(), table.to_text());
        }
    }
    let _ = writeln!(
        text,
        "in the paper (Rosenblum 1995, section 4.4, figures 4.6 and 4.7): {}",
        rosenblum::CACHE_SIZES
    );
    text
}

fn per_thousand(misses: u64, instructions: u64) -> String {
    format!("{:.2}", 1000.0 * misses as f64 / instructions.max(1) as f64)
}
