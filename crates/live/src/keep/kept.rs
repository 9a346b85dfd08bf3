//! What groups were made from, and its file: JSON with a format number and a checksum.
//!
//! Input: the functions, options and profile of a group. Output: [`Kept`], and its text. This
//! module reads and writes no files.

use super::shape::Shape;
use crate::eligible;
use crate::lasting;
use crate::origin;
use anyhow::{Context, Result, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::sealed;
use layout::Algorithm;
use layout::inlining::CallCosts;
use profile::Profile;
use serde::{Deserialize, Serialize};

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The format of the file.
const FORMAT: u32 = 1;

/// A function that was chosen for a group, or a cold part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptFunction {
    /// With its module behind it, as in `/proc/kallsyms`.
    pub name: String,
    /// Its lasting address, hex.
    pub address: String,
    /// It stays called where calls are inlined.
    pub called: bool,
    /// It was chosen. Otherwise it is the cold part of a function that was.
    pub chosen: bool,
    pub shape: Shape,
}

/// What one group was made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptGroup {
    algorithm: String,
    seed: u64,
    inline: bool,
    /// What a direct call, an indirect call, a jump and a guard cost, where the machine was known.
    call_costs: Option<[f64; 4]>,
    pub(super) functions: Vec<KeptFunction>,
    /// The names of functions outside of the group that it calls, by their lasting addresses, hex.
    pub(super) callees: BTreeMap<String, String>,
    /// The counts of these functions, as the text of a profile's file.
    profile: Option<String>,
}

/// How a group is laid out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptLayout {
    /// The layout algorithm.
    pub algorithm: Algorithm,
    /// For random orders.
    pub seed: u64,
    /// Calls are inlined by the profile.
    pub inline: bool,
    /// What calls cost on the machine; `None` where it is not known.
    pub call_costs: Option<CallCosts>,
}

impl KeptGroup {
    /// Describes a group. `chosen` and `called` are indices into the kernel's functions: what was
    /// chosen, and which of it stays called.
    pub fn new(
        kernel: &LinkedKernel<'_>,
        chosen: &[usize],
        called: &[usize],
        profile: Option<&Profile>,
        layout: KeptLayout,
    ) -> KeptGroup {
        let chosen: BTreeSet<usize> = chosen.iter().copied().collect();
        let cold = chosen.iter().flat_map(|&index| eligible::cold_parts(kernel, index));
        let all: BTreeSet<usize> = chosen.iter().copied().chain(cold).collect();
        let function = |&index: &usize| {
            let function = &kernel.functions[index];
            KeptFunction {
                name: kernel.title(function),
                address: hex(kernel.lasting_address(kernel.link_address(function.at))),
                called: called.contains(&index),
                chosen: chosen.contains(&index),
                shape: Shape::of(kernel, index),
            }
        };
        let profile = profile.map(|profile| of_functions(kernel, profile, &all));
        let outside =
            profile.iter().flat_map(|profile| profile.calls.keys()).filter_map(|&(_, to)| {
                let index = kernel.function_at(to)?;
                let name = kernel.title(&kernel.functions[index]);
                (!all.contains(&index)).then(|| (hex(kernel.lasting_address(to)), name))
            });
        KeptGroup {
            algorithm: layout.algorithm.to_string(),
            seed: layout.seed,
            inline: layout.inline,
            call_costs: layout.call_costs.map(|costs| {
                let CallCosts { direct, indirect, jump, guard } = costs;
                [direct, indirect, jump, guard]
            }),
            callees: outside.collect(),
            functions: all.iter().map(function).collect(),
            profile: profile.map(|profile| lasting::lasting(kernel, profile).to_json()),
        }
    }

    /// How it was laid out.
    ///
    /// # Errors
    /// This version does not know the algorithm.
    pub fn layout(&self) -> Result<KeptLayout> {
        let algorithm = self.algorithm.parse();
        let algorithm = algorithm
            .map_err(|_| anyhow::anyhow!("an unknown layout algorithm, {}", self.algorithm))?;
        let call_costs = self.call_costs.map(|[direct, indirect, jump, guard]| CallCosts {
            direct,
            indirect,
            jump,
            guard,
        });
        Ok(KeptLayout { algorithm, seed: self.seed, inline: self.inline, call_costs })
    }

    /// The names of the functions that were chosen.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().filter(|function| function.chosen).map(|f| f.name.as_str())
    }

    /// Whether a function of a module was chosen.
    pub fn has_modules(&self) -> bool {
        self.names().any(|name| name.ends_with(']'))
    }

    /// The number of functions that were chosen.
    pub fn len(&self) -> usize {
        self.names().count()
    }

    /// Whether no function was chosen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counts of its functions, by lasting addresses of the build that it was made in.
    ///
    /// # Errors
    /// The profile is damaged.
    pub fn profile(&self) -> Result<Option<Profile>> {
        let profile = self.profile.as_deref().map(Profile::from_json).transpose();
        profile.context("the profile of a group")
    }
}

/// The blocks, edges and calls of these functions: what a group of them is made from.
fn of_functions(kernel: &LinkedKernel<'_>, profile: &Profile, of: &BTreeSet<usize>) -> Profile {
    let is_own = |at: &LinkAddr| kernel.function_at(*at).is_some_and(|index| of.contains(&index));
    let mut own = Profile::empty(profile.build_id.clone());
    own.merge = profile.merge;
    own.sources = profile.sources.clone();
    own.blocks = profile.blocks.iter().filter(|(at, _)| is_own(at)).map(copied).collect();
    let edges = profile.edges.iter().filter(|((from, to), _)| is_own(from) && is_own(to));
    own.edges = edges.map(copied).collect();
    own.calls = profile.calls.iter().filter(|((from, _), _)| is_own(from)).map(copied).collect();
    own
}

fn copied<K: Copy, V: Copy>((key, value): (&K, &V)) -> (K, V) {
    (*key, *value)
}

pub(super) fn hex(at: LinkAddr) -> String {
    at.to_string()
}

pub(super) fn address(text: &str) -> Result<LinkAddr> {
    let at = u64::from_str_radix(text, 16);
    Ok(LinkAddr(at.with_context(|| format!("{text:?} is no hexadecimal address"))?))
}

/// The groups that are kept, in the order in which they are installed.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The release of the kernel that they were made in, as `uname -r` prints it.
    pub release: String,
    /// Its build id.
    pub build_id: BuildId,
    /// When they were kept, in seconds since 1970.
    pub since: u64,
    /// The groups.
    pub groups: Vec<KeptGroup>,
}

#[derive(Serialize, Deserialize)]
struct KeptDocument {
    kernlane_kept: u32,
    release: String,
    kernel: BuildId,
    since: u64,
    groups: Vec<KeptGroup>,
    /// Written by [`sealed::json`].
    #[serde(default, skip_serializing)]
    sha256: Option<String>,
}

impl Kept {
    /// The groups as they are kept now.
    ///
    /// # Errors
    /// The kernel's release cannot be read.
    pub fn now(build_id: BuildId, groups: Vec<KeptGroup>) -> Result<Kept> {
        Ok(Kept { release: origin::release()?, build_id, since: now(), groups })
    }

    /// For how long they have been kept; zero if the clock was set back.
    pub fn age(&self) -> Duration {
        Duration::from_secs(now().saturating_sub(self.since))
    }

    /// The number of functions of all groups.
    pub fn functions(&self) -> usize {
        self.groups.iter().map(KeptGroup::len).sum()
    }

    /// The file's bytes.
    ///
    /// # Errors
    /// None that a group of this process can cause.
    pub fn to_json(&self) -> Result<String> {
        let document = KeptDocument {
            kernlane_kept: FORMAT,
            release: self.release.clone(),
            kernel: self.build_id.clone(),
            since: self.since,
            groups: self.groups.clone(),
            sha256: None,
        };
        Ok(sealed::json(&serde_json::to_string(&document)?))
    }

    /// Reads what `to_json` wrote.
    ///
    /// # Errors
    /// The text is not such a file, has another format, is damaged or cut off, or has no groups.
    pub fn from_json(text: &str) -> Result<Kept> {
        let document: KeptDocument = serde_json::from_str(text)
            .context("not a file of kept groups, or one that is cut off; keep the groups again")?;
        ensure!(
            document.kernlane_kept == FORMAT,
            "a file of kept groups of format {}; this version reads format {FORMAT}: keep the \
             groups again",
            document.kernlane_kept
        );
        sealed::verify_json(text, document.sha256.as_deref(), true)?;
        let KeptDocument { release, kernel: build_id, since, groups, .. } = document;
        let has_functions = groups.iter().all(|group| !group.is_empty());
        ensure!(!groups.is_empty() && has_functions, "a file of kept groups without functions");
        for function in groups.iter().flat_map(|group| &group.functions) {
            function.shape.check().with_context(|| function.name.clone())?;
        }
        Ok(Kept { release, build_id, since, groups })
    }
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{F, G, H, at, tables, with};

    const LAYOUT: KeptLayout = KeptLayout {
        algorithm: Algorithm::ExtTspGlobal,
        seed: 7,
        inline: true,
        call_costs: Some(CallCosts { direct: 30.4, indirect: 40.0, jump: 0.5, guard: 0.0 }),
    };

    fn profile(kernel: &LinkedKernel<'_>) -> Profile {
        let mut profile = Profile::empty(kernel.build_id.clone());
        profile.blocks.extend([(at(0), 9), (at(0x0c), 5), (at(0x40), 5), (at(0x80), 3)]);
        profile.calls.extend([((at(0x0c), at(0x40)), 5), ((at(0x80), at(0)), 3)]);
        profile.seeds.insert((at(0), layout::graph::SeedClass::SystemCall), 9);
        profile
    }

    #[test]
    fn a_group_is_read_as_it_was_written() {
        with(tables(), |kernel| {
            let profile = profile(kernel);
            let group = KeptGroup::new(kernel, &[G, F], &[G], Some(&profile), LAYOUT);
            assert_eq!((group.len(), group.layout().unwrap()), (2, LAYOUT));
            let kept = Kept::now(kernel.build_id.clone(), vec![group]).unwrap();
            let text = kept.to_json().unwrap();
            assert_eq!(Kept::from_json(&text).unwrap(), kept);
            assert_eq!((kept.functions(), kept.age().as_secs() < 100), (2, true));
        });
    }

    #[test]
    fn the_profile_has_what_the_group_is_made_from_and_no_more() {
        with(tables(), |kernel| {
            let profile = profile(kernel);
            let kept =
                |chosen: &[usize]| KeptGroup::new(kernel, chosen, &[], Some(&profile), LAYOUT);
            let own = kept(&[F]).profile().unwrap().unwrap();
            let blocks: Vec<_> = own.blocks.into_iter().collect();
            assert_eq!(blocks, [(at(0), 9), (at(0x0c), 5)]);
            // The call of g stays, and g is known by its name.
            assert_eq!(own.calls.len(), 1);
            assert!(own.seeds.is_empty());
            let callees: Vec<_> = kept(&[F]).callees.into_iter().collect();
            assert_eq!(callees, [("ffffffff81000040".to_owned(), "g".to_owned())]);
            assert!(kept(&[F, G]).callees.is_empty());
            assert_eq!(kept(&[H]).profile().unwrap().unwrap().calls.len(), 1);
            // The group has the same counts.
            let memory = crate::memory::FileMemory(kernel);
            let group = crate::group::Group::new(kernel, &memory, &[F, G]).unwrap();
            let own = kept(&[F, G]).profile().unwrap();
            let [own, all] = [own.as_ref(), Some(&profile)].map(|profile| group.graph(profile));
            assert_eq!((own.counts, own.calls.len()), (all.counts, all.calls.len()));
        });
    }

    #[test]
    fn damaged_files_and_those_of_other_formats_are_refused() {
        with(tables(), |kernel| {
            let group = KeptGroup::new(kernel, &[F], &[], None, LAYOUT);
            let kept = Kept::now(kernel.build_id.clone(), vec![group]).unwrap();
            let text = kept.to_json().unwrap();
            let error = |text: &str| format!("{:#}", Kept::from_json(text).unwrap_err());
            assert!(error("").contains("cut off"));
            assert!(error(&text[..text.len() - 30]).contains("cut off"));
            assert!(error("{}").contains("not a file of kept groups"));
            let other = text.replace("\"kernlane_kept\":1", "\"kernlane_kept\":2");
            assert!(error(&other).contains("format 2; this version reads format 1"));
            assert!(error(&text.replace("\"f\"", "\"g\"")).contains("checksum"));
            let empty = Kept { groups: vec![], ..kept.clone() }.to_json().unwrap();
            assert!(error(&empty).contains("without functions"));
            let mut wrong = kept.clone();
            wrong.groups[0].algorithm = "magic".into();
            let wrong = Kept::from_json(&wrong.to_json().unwrap()).unwrap();
            let error = wrong.groups[0].layout().unwrap_err().to_string();
            assert_eq!(error, "an unknown layout algorithm, magic");
        });
    }
}
