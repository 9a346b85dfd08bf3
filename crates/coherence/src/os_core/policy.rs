//! Policies: which stays in the kernel move to the operating system's core.
//!
//! Input: text, and the stays of a recording. Output: what moves. This module simulates nothing.

use anyhow::{Context, Result, ensure};
use services::annotations::ServiceKind;
use services::stays::{Stay, Stays};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The numbers of instructions that a stay must exceed to move, for a sweep when no policy is
/// given.
pub(crate) const THRESHOLDS: [u64; 8] = [100, 250, 500, 1000, 2500, 5000, 10_000, 25_000];

/// The largest number of names in a message.
const NAMED: usize = 12;

/// What moves to the operating system's core. Idle tasks never do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OsCorePolicy {
    /// Nothing moves. The other policies are compared with this one.
    Nothing,
    /// Every stay in the kernel.
    Everything,
    /// Stays with more instructions than this. The recording shows how long a stay will be; a
    /// processor has to guess it.
    LongerThan(u64),
    /// Stays of the services with these names.
    Services(BTreeSet<String>),
}

impl OsCorePolicy {
    /// Every policy of a sweep, except [`OsCorePolicy::Nothing`].
    pub fn sweep() -> Vec<OsCorePolicy> {
        let longer = THRESHOLDS.map(OsCorePolicy::LongerThan);
        std::iter::once(OsCorePolicy::Everything).chain(longer).collect()
    }

    /// The number of instructions that a stay must exceed to move, for policies that ask for
    /// nothing else.
    pub(crate) fn threshold(&self) -> Option<u64> {
        match self {
            OsCorePolicy::Everything => Some(0),
            OsCorePolicy::LongerThan(instructions) => Some(*instructions),
            OsCorePolicy::Nothing | OsCorePolicy::Services(_) => None,
        }
    }

    /// The policy for the services of a recording.
    ///
    /// # Errors
    /// No stay of the recording has a service with one of the names.
    pub(super) fn bind(&self, stays: &Stays) -> Result<BoundPolicy> {
        if let OsCorePolicy::Services(names) = self {
            check_names(names, stays)?;
        }
        let moves = |(kind, name): &(ServiceKind, String)| match self {
            OsCorePolicy::Nothing => false,
            _ if *kind == ServiceKind::Idle => false,
            OsCorePolicy::Everything | OsCorePolicy::LongerThan(_) => true,
            OsCorePolicy::Services(names) => names.contains(name),
        };
        Ok(BoundPolicy {
            policy: self.clone(),
            moves: stays.services.iter().map(moves).collect(),
            moves_unknown: self.threshold().is_some(),
            longer_than: self.threshold().unwrap_or(0),
        })
    }
}

fn check_names(names: &BTreeSet<String>, stays: &Stays) -> Result<()> {
    let of_stays = stays.cpus.iter().flatten().filter_map(|stay| stay.service);
    let known: BTreeSet<&str> =
        of_stays.filter_map(|service| Some(&*stays.services.get(service.0 as usize)?.1)).collect();
    for name in names {
        let others: Vec<&str> = known.iter().copied().take(NAMED).collect();
        ensure!(
            known.contains(&**name),
            "services:{name}: no stay in the kernel of this recording has this service. It has \
             stays of {}{}: the table of services lists all",
            others.join(", "),
            if known.len() > NAMED { " and others" } else { "" }
        );
    }
    Ok(())
}

impl fmt::Display for OsCorePolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OsCorePolicy::Nothing => write!(out, "nothing"),
            OsCorePolicy::Everything => write!(out, "everything"),
            OsCorePolicy::LongerThan(instructions) => write!(out, "longer:{instructions}"),
            OsCorePolicy::Services(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                write!(out, "services:{}", names.join(","))
            }
        }
    }
}

impl FromStr for OsCorePolicy {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<OsCorePolicy> {
        let asked =
            || format!("{text:?}: write everything, longer:INSTRUCTIONS or services:NAME,NAME");
        if text == "everything" {
            return Ok(OsCorePolicy::Everything);
        }
        let (kind, rest) = text.split_once(':').with_context(asked)?;
        let names: BTreeSet<String> = rest.split(',').map(|name| name.trim().to_owned()).collect();
        match kind {
            "longer" => Ok(OsCorePolicy::LongerThan(rest.parse().with_context(asked)?)),
            "services" if names.iter().all(|name| !name.is_empty()) => {
                Ok(OsCorePolicy::Services(names))
            }
            _ => Err(anyhow::Error::msg(asked())),
        }
    }
}

/// A policy for the services of a recording.
#[derive(Clone, Debug)]
pub(crate) struct BoundPolicy {
    policy: OsCorePolicy,
    /// Whether stays of a service may move, by number.
    moves: Vec<bool>,
    moves_unknown: bool,
    longer_than: u64,
}

impl BoundPolicy {
    /// The policy.
    pub(crate) fn policy(&self) -> &OsCorePolicy {
        &self.policy
    }

    /// Whether a stay moves to the operating system's core.
    #[inline]
    pub(super) fn moves(&self, stay: &Stay) -> bool {
        let of_service = match stay.service {
            Some(service) => self.moves[service.0 as usize],
            None => self.moves_unknown,
        };
        of_service && stay.instructions > self.longer_than
    }
}
