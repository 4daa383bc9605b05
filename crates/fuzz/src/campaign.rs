//! One run against one reader.

use std::{
    collections::{HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::{Mutator, Target};

/// How many inputs are kept to be changed further.
const MAX_CORPUS: usize = 4000;
/// A reader that needs this long for 16 KiB can be made to hang.
const TOO_LONG: Duration = Duration::from_secs(5);

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After so many inputs: the same ones each time.
    Inputs(u64),
    /// After this long.
    Elapsed(Duration),
}

/// What a run without a finding did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Inputs tried.
    pub inputs: u64,
    /// Different answers seen.
    pub answers: usize,
}

/// An input that a reader does not bear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What happened.
    pub what: String,
    /// The input, made as short as it gets.
    pub input: Vec<u8>,
}

/// A run.
#[derive(Debug)]
pub struct Campaign<'a> {
    target: &'a Target,
    mutator: Mutator,
    corpus: Vec<Vec<u8>>,
    answers: HashSet<u64>,
}

impl<'a> Campaign<'a> {
    /// Begins with the target's own inputs.
    #[must_use]
    pub fn new(target: &'a Target, seed: u64) -> Self {
        let corpus = (target.seeds)();
        Self { target, mutator: Mutator::new(seed), corpus, answers: HashSet::new() }
    }

    /// Tries inputs until it is time to end.
    ///
    /// # Errors
    /// The first input that the reader does not bear.
    pub fn run(&mut self, until: Until) -> Result<Summary, Finding> {
        let begun = Instant::now();
        let mut inputs = 0;
        for seed in self.corpus.clone() {
            self.answers.insert(self.answer(&seed)?);
            inputs += 1;
        }
        while match until {
            Until::Inputs(most) => inputs < most,
            Until::Elapsed(most) => begun.elapsed() < most,
        } {
            let (one, other) = (self.mutator.below(self.corpus.len()), self.mutator.below(self.corpus.len()));
            let (Some(one), Some(other)) = (self.corpus.get(one), self.corpus.get(other)) else { break };
            let input = self.mutator.change(one, other);
            let answer = self.answer(&input)?;
            inputs += 1;
            if self.answers.insert(answer) && self.corpus.len() < MAX_CORPUS {
                self.corpus.push(input);
            }
        }
        Ok(Summary { inputs, answers: self.answers.len() })
    }

    fn answer(&self, input: &[u8]) -> Result<u64, Finding> {
        let begun = Instant::now();
        let answer = attempt(self.target, input)
            .map_err(|what| Finding { what, input: shortened(self.target, input) })?;
        if begun.elapsed() > TOO_LONG {
            let what = format!("it took {:?}", begun.elapsed());
            return Err(Finding { what, input: input.to_vec() });
        }
        // Numbers and names in an answer are the input's own; its words are the reader's.
        let words = answer.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 2).take(12);
        let mut hasher = DefaultHasher::new();
        words.for_each(|word| word.hash(&mut hasher));
        Ok(hasher.finish())
    }
}

/// The reader's words, or those of its panic.
fn attempt(target: &Target, input: &[u8]) -> Result<String, String> {
    catch_unwind(AssertUnwindSafe(|| (target.read)(input))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

/// Leaves out pieces as long as the reader still panics.
fn shortened(target: &Target, input: &[u8]) -> Vec<u8> {
    let begun = Instant::now();
    let mut best = input.to_vec();
    let mut piece = best.len() / 2;
    while piece > 0 && begun.elapsed() < TOO_LONG {
        let mut at = 0;
        while at < best.len() {
            let rest = best.iter().enumerate().filter(|(index, _)| !(at..at + piece).contains(index));
            let shorter: Vec<u8> = rest.map(|(_, byte)| *byte).collect();
            if attempt(target, &shorter).is_err() {
                best = shorter;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TARGETS;

    /// Tier 1: every reader bears a few thousand inputs, always the same.
    #[test]
    fn no_reader_is_upset_by_a_short_run() {
        for target in TARGETS {
            let run = || Campaign::new(target, 1).run(Until::Inputs(target.short_run));
            let mut done = run();
            // A machine that stood still does not stand still at the same input again.
            if done.as_ref().is_err_and(|finding| finding.what.starts_with("it took")) {
                done = run();
            }
            let summary = done.unwrap_or_else(|finding| {
                panic!("{}: {}: {:?}", target.name, finding.what, String::from_utf8_lossy(&finding.input))
            });
            assert!(summary.answers >= 3, "{}: the search goes nowhere: {summary:?}", target.name);
        }
    }

    #[test]
    fn a_panic_is_found_and_its_input_made_short() {
        fn read(input: &[u8]) -> String {
            assert!(!input.windows(2).any(|pair| pair == b"ab"), "upset");
            "fine".to_owned()
        }
        let seeds = || vec![b"the alphabet is long and about to end; a b".to_vec()];
        let target = Target { name: "test", reads: "nothing", seeds, read, short_run: 1 };
        let finding = Campaign::new(&target, 1).run(Until::Inputs(10)).unwrap_err();
        assert_eq!((finding.what.as_str(), finding.input.as_slice()), ("upset", &b"ab"[..]));
    }
}
