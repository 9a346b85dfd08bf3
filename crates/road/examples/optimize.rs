//! What `kernlane optimize net` does, with the library: records a workload, lays the kernel out for
//! it, relinks, proves, records the new kernel, and compares.
//!
//! Boots two guests, so it takes minutes, and needs what `kernlane doctor` lists for `optimize`:
//!
//!     cargo build --release
//!     cargo run --release -p kernlane-road --example optimize ~/linux net.optimized

use anyhow::{Result, bail};
use road::host::terminal::Terminal;
use road::layout::Algorithm;
use road::machines;
use road::optimization::Optimization;
use road::optimize::Road;
use road::report::text;
use std::path::PathBuf;

fn main() -> Result<()> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [tree, output] = &arguments[..] else { bail!("give the kernel's tree and a directory") };
    // Without an observer, the library works in silence.
    Terminal::observe();

    let machines = vec![machines::find("server-32k")?.model];
    let mut road = Road::open(Optimization::new("net", tree, output, machines))?;
    let originals = road.record()?;
    let profile = road.count(&originals)?;
    let layout = road.lay_out(&road.ground(&profile)?, Algorithm::default(), &originals)?;
    let kernel = road.relink(&layout)?;
    let mut rows = road.predict(&originals, std::slice::from_ref(&kernel))?;
    rows.extend(road.measure(&kernel)?);
    print!("{}", text::comparisons(&road.keep(rows)?.comparisons));
    Ok(())
}
