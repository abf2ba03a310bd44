//! Numbers for things, so that a number of what is gone is an error and not an address.

use std::sync::Arc;

use parking_lot::Mutex;

/// Things by number. A number is used once: its upper half counts what its place has held.
pub(super) struct Handles<T>(Mutex<Vec<Place<T>>>);

struct Place<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

impl<T> Handles<T> {
    pub(super) const fn new() -> Self {
        Handles(Mutex::new(Vec::new()))
    }

    pub(super) fn insert(&self, value: Arc<T>) -> u64 {
        let mut places = self.0.lock();
        let free = places.iter().position(|place| place.value.is_none());
        let index = free.unwrap_or_else(|| {
            places.push(Place { generation: 0, value: None });
            places.len() - 1
        });
        places[index].value = Some(value);
        // Never 0, so that a handle which nobody has set is none.
        u64::from(places[index].generation) << 32 | (index as u64 + 1)
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        find(&mut self.0.lock(), handle)?.value.clone()
    }

    /// Takes a thing out, where `may` says so. Nobody gets the thing while `may` looks at it.
    pub(super) fn remove_if(
        &self,
        handle: u64,
        may: impl FnOnce(&Arc<T>) -> bool,
    ) -> Option<Arc<T>> {
        let mut places = self.0.lock();
        let place = find(&mut places, handle)?;
        if !may(place.value.as_ref()?) {
            return None;
        }
        place.generation = place.generation.wrapping_add(1);
        place.value.take()
    }
}

fn find<T>(places: &mut [Place<T>], handle: u64) -> Option<&mut Place<T>> {
    let index = (handle as u32).checked_sub(1)?;
    let place = places.get_mut(index as usize)?;
    (u64::from(place.generation) == handle >> 32).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_of_one_thing() {
        let handles = Handles::new();
        let (one, two) = (handles.insert(Arc::new(1)), handles.insert(Arc::new(2)));
        assert_eq!(
            (handles.get(one).as_deref(), handles.get(two).as_deref()),
            (Some(&1), Some(&2))
        );
        assert!(handles.remove_if(one, |_| false).is_none());
        assert_eq!(handles.remove_if(one, |_| true).as_deref(), Some(&1));
        let three = handles.insert(Arc::new(3));
        assert!(three != one && three as u32 == one as u32, "the same place");
        for gone in [one, 0, 77, u64::MAX] {
            assert!(handles.get(gone).is_none() && handles.remove_if(gone, |_| true).is_none());
        }
        assert_eq!(handles.get(three).as_deref(), Some(&3));
    }
}
