//! What a query means now, kept until something may have changed it.
//!
//! A claim and a publication ask for it each time. What was found is forgotten whenever PostgreSQL says that a table, a
//! function, a type or anything else of that kind was changed, by whomever: as it forgets its own plans.

use crate::error::Result;
use crate::postgres::author::Author;
use crate::postgres::impurity::{self, Found, Subject};
use crate::postgres::query::Select;
use crate::postgres::reach::{self, Part};
use crate::postgres::{digest, settings, subtransaction};
use pgrx::{pg_guard, pg_sys};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// All that the meaning of a query depends on.
pub struct Meaning {
    /// A short text that stands for it.
    pub version: String,
    /// The query first.
    pub parts: Vec<Part>,
    /// What was found when somebody asked whether it is pure, for each target.
    looked: RefCell<HashMap<Subject, Rc<Vec<Found>>>>,
}

impl Meaning {
    /// What an analysed query means that is read under a `search_path`. Its author and settings are the caller's to see to.
    pub fn of(select: &Select, path: &str) -> Self {
        let parts = reach::parts(select.analysed(), path);
        let mut text = String::new();
        for Part { kind, name, definition, .. } in &parts {
            // Lengths keep the parts apart.
            text.push_str(&format!("{kind} {} {name} {} {definition}\n", name.len(), definition.len()));
        }
        let version = format!("sql:{}", digest::of_text(text.as_bytes()));
        Self { version, parts, looked: RefCell::default() }
    }
}

/// What keeps the text of an author from being a function of its window.
pub fn impurities(author: &str, text: &str, path: &str, subject: &Subject) -> Result<Rc<Vec<Found>>> {
    let meaning = of_text(author, text, path)?;
    if let Some(known) = meaning.looked.borrow().get(subject) {
        return Ok(known.clone());
    }
    let found = Author::named(author)?.run(|| {
        settings::for_query("UTC", &settings::with_temporary_last(path), || {
            impurity::look(&Select::read(text)?, path, subject)
        })
    })?;
    let found = Rc::new(found);
    meaning.looked.borrow_mut().insert(subject.clone(), found.clone());
    Ok(found)
}

type Key = (String, String, String);

thread_local! {
    static KNOWN: RefCell<HashMap<Key, Rc<Meaning>>> = RefCell::default();
    /// Goes up whenever something may have changed.
    static GENERATION: Cell<u64> = const { Cell::new(0) };
}

/// What the text of an author means under a `search_path`: neither its formatting and its comments count, nor what it calls by
/// a name that nobody else sees, nor the settings of the session.
pub fn of_text(author: &str, text: &str, path: &str) -> Result<Rc<Meaning>> {
    unsafe { pg_sys::AcceptInvalidationMessages() };
    let key = (author.to_owned(), text.to_owned(), path.to_owned());
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&key).cloned()) {
        return Ok(known);
    }
    let generation = GENERATION.get();
    let meaning = Author::named(author)?.run(|| -> Result<Meaning> {
        settings::for_query("UTC", &settings::with_temporary_last(path), || {
            Ok(Meaning::of(&Select::read(text)?, path))
        })
    })?;
    let meaning = Rc::new(meaning);
    // What changed while it was looked at may or may not be seen in it: whoever asks next looks again.
    if GENERATION.get() != generation {
        return Ok(meaning);
    }
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, meaning.clone());
    });
    Ok(meaning)
}

/// Whether two lists of parts say the same once each definition was read and written again by this server. What cannot be read
/// says nothing.
pub fn says_the_same(author: &str, path: &str, before: &[Part], now: &[Part]) -> bool {
    let reworded = |definition: &str, of: &Part| {
        let read = || {
            let author = Author::named(author).ok()?;
            author.run(|| {
                settings::for_query("UTC", &settings::with_temporary_last(path), || {
                    reach::reworded(definition, of, path)
                })
            })
        };
        match subtransaction::attempt(read) {
            Ok(text) => text,
            // Whoever asks takes the answer for good.
            Err(caught) if subtransaction::is_accident(&caught) => caught.rethrow(),
            Err(_) => None,
        }
    };
    let same = |was: &Part| {
        let Some(is) = now.iter().find(|is| (&is.kind, &is.name) == (&was.kind, &was.name)) else {
            return false;
        };
        let read = || {
            let was = reworded(&was.definition, is);
            was.is_some() && was == reworded(&is.definition, is)
        };
        was.definition == is.definition || read()
    };
    before.len() == now.len() && before.iter().all(same)
}

/// How many are kept.
const MOST: usize = 1_000;

/// Called once, when the library is loaded.
pub fn init() {
    use pg_sys::SysCacheIdentifier as Cache;
    let caches = [
        Cache::AGGFNOID,
        // What sorts by which function.
        Cache::AMOPOPID,
        Cache::AMPROCNUM,
        // Who is a member of what decides which schemas a search_path shows.
        Cache::AUTHMEMROLEMEM,
        Cache::AUTHOID,
        Cache::CASTSOURCETARGET,
        Cache::COLLOID,
        Cache::CONSTROID,
        Cache::ENUMOID,
        Cache::NAMESPACEOID,
        Cache::OPEROID,
        Cache::PROCOID,
        Cache::TSCONFIGMAP,
        // Which of them has the name.
        Cache::TSCONFIGOID,
        Cache::TSDICTOID,
        Cache::TYPEOID,
    ];
    unsafe {
        for cache in caches {
            pg_sys::CacheRegisterSyscacheCallback(cache as i32, Some(at_change), pg_sys::Datum::null());
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_change(_argument: pg_sys::Datum, _cache: i32, _hash: u32) {
    forget();
}

/// A table was changed, or a policy or a default of one. PostgreSQL has room for few who want to hear of that, so that
/// `ledger::fenced` passes it on.
pub fn forget() {
    GENERATION.set(GENERATION.get() + 1);
    KNOWN.take();
}
