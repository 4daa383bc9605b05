//! Questions that strangers may have open: a bounded number, and of these no more than a part for one address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::ReviewError;

/// Places for questions; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    all: usize,
    per_address: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<Option<IpAddr>, usize>,
}

/// One that is taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    address: Option<IpAddr>,
}

impl Places {
    pub(crate) fn new(all: usize, per_address: usize) -> Self {
        Self { all, per_address, taken: Arc::default() }
    }

    /// A place, if there is one.
    pub(crate) fn take(&self, address: Option<IpAddr>) -> Result<Place, ReviewError> {
        let mut taken = self.lock();
        if taken.all >= self.all {
            return Err(full(self.all));
        }
        let of_address = taken.by_address.entry(address).or_default();
        if *of_address >= self.per_address {
            return Err(ReviewError(format!(
                "{} questions to the API server are open already for this address",
                self.per_address
            )));
        }
        *of_address += 1;
        taken.all += 1;
        Ok(Place { places: self.clone(), address })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(count) = taken.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

/// There is no place left.
pub(crate) fn full(all: usize) -> ReviewError {
    ReviewError(format!("{all} questions to the API server are open already; is it slow?"))
}
