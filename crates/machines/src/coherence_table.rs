//! The table [coherence] of a machine file: the cores of a multiprocessor.

use crate::sourced::{MachineFileReader, Sourced, SourcedFraction, SourcedInteger};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use sim::coherent::{CoherenceDescription, Protocol};
use toml::Spanned;

/// Latencies in cycles. The latency to another cluster is given exactly when there are several
/// clusters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CoherenceText {
    cores: SourcedInteger,
    clusters: SourcedInteger,
    protocol: Spanned<Sourced<ProtocolText>>,
    core: SourcedFraction,
    cluster: Option<SourcedFraction>,
}

/// A protocol by its name.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct ProtocolText(Protocol);

impl TryFrom<String> for ProtocolText {
    type Error = String;

    fn try_from(name: String) -> Result<ProtocolText, String> {
        let found = Protocol::ALL.iter().find(|protocol| protocol.name() == name);
        found.copied().map(ProtocolText).ok_or_else(|| {
            let known = Protocol::ALL.map(Protocol::name).join(", ");
            format!("there is no protocol `{name}`; there are {known}")
        })
    }
}

impl MachineFileReader<'_> {
    /// The cores of a multiprocessor.
    ///
    /// # Errors
    /// A number has no source, or contradicts another. The error names the rule and the line.
    pub(crate) fn coherence(
        &self,
        spanned: &Spanned<CoherenceText>,
    ) -> Result<CoherenceDescription> {
        let text = spanned.get_ref();
        let clusters = *self.sourced(&text.clusters)?;
        if (clusters > 1) != text.cluster.is_some() {
            bail!(
                "{}: [coherence] must name the latency `cluster` exactly when there are several \
                 clusters, and there are {clusters}",
                self.at(spanned)
            );
        }
        let core = *self.sourced(&text.core)?;
        // A single cluster is never left.
        let cluster = text.cluster.as_ref().map_or(Ok(&core), |cluster| self.sourced(cluster))?;
        let ProtocolText(protocol) = *self.sourced(&text.protocol)?;
        CoherenceDescription::new(*self.sourced(&text.cores)?, clusters, protocol, core, *cluster)
            .with_context(|| format!("{}: [coherence] cannot be built", self.at(spanned)))
    }
}
