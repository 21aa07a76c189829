//! Lists in which an item is found by its name, however many there are, and which keep the order in
//! which items were added.

use std::collections::{BTreeMap, HashMap};

use crate::suggest;

/// An item of a [`List`].
pub trait Named {
    /// What items of this kind are called in messages.
    const KIND: &'static str;

    /// Its name, which never changes.
    fn name(&self) -> &str;
}

/// Items with unique names, oldest first.
pub struct List<T> {
    /// By number; a new item gets the next number.
    items: BTreeMap<u64, T>,
    numbers: HashMap<String, u64>,
    next: u64,
}

impl<T> Default for List<T> {
    fn default() -> List<T> {
        List { items: BTreeMap::new(), numbers: HashMap::new(), next: 0 }
    }
}

impl<T: Named> List<T> {
    /// Adds an item behind the others. The name must be new.
    pub fn push(&mut self, item: T) {
        let before = self.numbers.insert(item.name().to_owned(), self.next);
        assert!(before.is_none(), "there are two {}s with the name {:?}", T::KIND, item.name());
        self.items.insert(self.next, item);
        self.next += 1;
    }

    /// The item with this name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.items.get(self.numbers.get(name)?)
    }

    /// The item with this name, to change it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.items.get_mut(self.numbers.get(name)?)
    }

    /// The item with this name. The error is a sentence, with the name that was probably meant.
    pub fn named(&self, name: &str) -> Result<&T, String> {
        self.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.iter().map(T::name).collect();
            suggest::missing(T::KIND, name, &known)
        })
    }

    /// Removes the item with this name.
    pub fn remove(&mut self, name: &str) {
        if let Some(number) = self.numbers.remove(name) {
            self.items.remove(&number);
        }
    }

    /// The items, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Letter(&'static str);

    impl Named for Letter {
        const KIND: &'static str = "letter";

        fn name(&self) -> &str {
            self.0
        }
    }

    #[test]
    fn items_are_found_by_name_and_stay_in_order_when_others_leave() {
        let mut list = List::default();
        for name in ["alpha", "beta", "gamma"] {
            list.push(Letter(name));
        }
        list.remove("beta");
        list.remove("delta");
        list.push(Letter("beta"));
        assert!(list.iter().map(|letter| letter.0).eq(["alpha", "gamma", "beta"]));
        assert_eq!(list.get("beta").map(|letter| letter.0), Some("beta"));
        let why = list.named("gama").err().unwrap();
        assert!(why.contains("no letter is called \"gama\"; did you mean \"gamma\""), "{why}");
    }
}
