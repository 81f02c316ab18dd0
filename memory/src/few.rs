//! A list optimized for one item: the first is stored inline, the others on the heap.

#[derive(Debug)]
pub(crate) struct Few<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> Few<T> {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Few { first: None, more: Vec::new() }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) {
        match self.first {
            None => self.first = Some(item),
            Some(_) => self.more.push(item),
        }
    }

    #[inline(always)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.more)
    }

    #[inline(always)]
    pub(crate) fn find(&self, is: impl Fn(&T) -> bool) -> Option<&T> {
        self.first.as_ref().filter(|first| is(first)).or_else(|| self.more.iter().find(|item| is(item)))
    }

    #[inline(always)]
    pub(crate) fn find_mut(&mut self, is: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.first.as_mut().filter(|first| is(first)).or_else(|| self.more.iter_mut().find(|item| is(item)))
    }

    /// Removes one item for which `is` holds; may reorder the others.
    #[inline(always)]
    pub(crate) fn remove(&mut self, is: impl Fn(&T) -> bool) -> Option<T> {
        if self.first.as_ref().is_some_and(&is) {
            return std::mem::replace(&mut self.first, self.more.pop());
        }
        let index = self.more.iter().position(is)?;
        Some(self.more.swap_remove(index))
    }

    /// Removes all items and keeps the capacity.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_whose_order_is_free_after_a_removal() {
        let mut few = Few::new();
        assert_eq!((few.iter().count(), few.remove(|_| true)), (0, None));
        (1..=4).for_each(|item| few.push(item));
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!((few.remove(|item| *item == 1), few.remove(|item| *item == 3)), (Some(1), Some(3)));
        *few.find_mut(|item| *item == 2).unwrap() *= 10;
        *few.find_mut(|item| *item == 4).unwrap() *= 10;
        assert_eq!((few.find(|item| *item == 40), few.find(|item| *item == 4)), (Some(&40), None));
        let mut left: Vec<i32> = few.iter().copied().collect();
        left.sort_unstable();
        assert_eq!(left, [20, 40]);
        few.clear();
        assert_eq!(few.iter().count(), 0);
        few.push(7);
        assert_eq!(few.remove(|_| true), Some(7));
    }
}
