//! The guests that an optimization records: one like each of the machines that it simulates.
//!
//! Input: names of machines. Output: guests, each with its machines. This module runs nothing.

use anyhow::Result;
use guest::ProcessorRequest;
use sim::MachineModel;

/// A guest in which original and relinked kernels are recorded, and the machines to simulate on its
/// recordings.
#[derive(Clone, Debug)]
pub struct RecordedGuest {
    /// Ends the names of its recordings; empty for the first guest.
    pub name: String,
    /// What the guest's kernel shall see.
    pub processor: ProcessorRequest,
    /// The machines.
    pub machines: Vec<MachineModel>,
}

impl RecordedGuest {
    /// The only guest, or the first.
    pub fn new(processor: ProcessorRequest, machines: Vec<MachineModel>) -> RecordedGuest {
        RecordedGuest { name: String::new(), processor, machines }
    }

    /// A guest like each of these machines (names or files), in their order. A machine whose file
    /// says nothing of guests is simulated on the recordings of the first guest.
    ///
    /// ```
    /// use road::guests::RecordedGuest;
    ///
    /// let guests = RecordedGuest::like_each(&["server-32k", "zen4", "golden-cove"], &[])?;
    /// let names: Vec<Vec<&str>> = guests
    ///     .iter()
    ///     .map(|guest| guest.machines.iter().map(|machine| &*machine.name).collect())
    ///     .collect();
    /// assert_eq!(names, [vec!["server-32k", "zen4"], vec!["golden-cove"]]);
    /// assert_eq!(guests[0].recording("original", None), "original.rec");
    /// assert_eq!(guests[1].recording("original", Some("net")), "original-net-golden-cove.rec");
    /// # anyhow::Ok(())
    /// ```
    ///
    /// `append`: further words of each kernel's command line.
    ///
    /// # Errors
    /// There is no such machine.
    pub fn like_each(names: &[impl AsRef<str>], append: &[String]) -> Result<Vec<RecordedGuest>> {
        let mut guests: Vec<RecordedGuest> = Vec::new();
        let mut of_any = Vec::new();
        for name in names {
            let machine = machines::find(name.as_ref())?;
            let Some(like) = machine.guest else {
                of_any.push(machine.model);
                continue;
            };
            let known =
                guests.iter_mut().find(|guest| guest.processor.like.as_ref() == Some(&like));
            match known {
                Some(guest) => guest.machines.push(machine.model),
                None => {
                    let name = if guests.is_empty() { String::new() } else { like.name.clone() };
                    let (like, append) = (Some(like), append.to_vec());
                    let processor =
                        ProcessorRequest { like, append, ..ProcessorRequest::default() };
                    guests.push(RecordedGuest { name, processor, machines: vec![machine.model] });
                }
            }
        }
        if guests.is_empty() {
            let append = append.to_vec();
            let processor = ProcessorRequest { append, ..ProcessorRequest::default() };
            guests.push(RecordedGuest::new(processor, Vec::new()));
        }
        // They stand in the order in which they were named.
        let place = |model: &MachineModel| {
            names
                .iter()
                .position(|name| machines::find(name.as_ref()).is_ok_and(|it| it.model == *model))
        };
        guests[0].machines.extend(of_any);
        guests[0].machines.sort_by_key(place);
        Ok(guests)
    }

    /// The name of the recording of a kernel in this guest. `workload`: its name, where several are
    /// recorded.
    pub fn recording(&self, kernel: &str, workload: Option<&str>) -> String {
        let named = workload.into_iter().chain([&*self.name].into_iter().filter(|n| !n.is_empty()));
        named.fold(kernel.to_owned(), |name, part| format!("{name}-{part}")) + ".rec"
    }
}
