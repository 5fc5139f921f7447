//! The digest of a set of rows.
//!
//! It is the sum, modulo 2^128, of one SipHash-1-3 (128 bits, key 0) per row, written as 32 hexadecimal
//! digits: the order of the rows does not matter, their number of copies does. What is hashed is the row's
//! text: for each column its length in bytes (four, little endian) and the UTF-8 text that its output
//! function gives under [`settings`](crate::postgres::settings)' fixed settings; NULL is the length
//! 2^32 - 1 without text. So a digest is the same on every server and major version.
//!
//! A digest is taken of 100,000 rows at a time while others wait, so the text of the common types is written
//! here instead of by their output functions, which allocate, and for `timestamptz` consult the session.

use crate::domain::pairing::Mark;
use pgrx::{PgTupleDesc, pg_sys};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::ffi::CStr;
use std::fmt;
use std::hash::Hasher;

/// The digest of no row, of one, or of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(u128);

impl Digest {
    /// What one row is known by.
    pub fn mark(self) -> Mark {
        Mark::from(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::ops::AddAssign for Digest {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

/// The digest of one text.
pub fn of_text(text: &[u8]) -> Digest {
    let mut hasher = SipHasher13::new();
    hasher.write(text);
    Digest(hasher.finish128().into())
}

/// Types without a writer here whose text depends on no setting that is not the same for queries and digests.
const SETTLED: [pg_sys::Oid; 14] = [
    pg_sys::NUMERICOID,
    pg_sys::FLOAT4OID,
    pg_sys::FLOAT8OID,
    pg_sys::INTERVALOID,
    pg_sys::JSONBOID,
    pg_sys::BYTEAOID,
    pg_sys::TIMEOID,
    pg_sys::NAMEOID,
    pg_sys::CHAROID,
    pg_sys::OIDOID,
    pg_sys::INETOID,
    pg_sys::CIDROID,
    pg_sys::INT4ARRAYOID,
    pg_sys::TEXTARRAYOID,
];

/// How the text of a column is found.
enum Text {
    Bool,
    Int2,
    Int4,
    Int8,
    Date,
    Timestamp,
    /// In UTC.
    Timestamptz,
    Uuid,
    /// The value is its text.
    Verbatim,
    /// By the type's output function; its name for the type is in `FmgrInfo`.
    Output(Box<pg_sys::FmgrInfo>),
    /// The same for types whose values may have to be fetched from a TOAST table first.
    Varlena(Box<pg_sys::FmgrInfo>),
}

impl Text {
    fn of(type_oid: pg_sys::Oid) -> Self {
        unsafe {
            match pg_sys::getBaseType(type_oid) {
                pg_sys::BOOLOID => Self::Bool,
                pg_sys::INT2OID => Self::Int2,
                pg_sys::INT4OID => Self::Int4,
                pg_sys::INT8OID => Self::Int8,
                pg_sys::DATEOID => Self::Date,
                pg_sys::TIMESTAMPOID => Self::Timestamp,
                pg_sys::TIMESTAMPTZOID => Self::Timestamptz,
                pg_sys::UUIDOID => Self::Uuid,
                pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID | pg_sys::JSONOID => Self::Verbatim,
                _ => {
                    let mut function = pg_sys::InvalidOid;
                    let mut varlena = false;
                    pg_sys::getTypeOutputInfo(type_oid, &mut function, &mut varlena);
                    let mut info = Box::<pg_sys::FmgrInfo>::default();
                    pg_sys::fmgr_info(function, &mut *info);
                    if varlena { Self::Varlena(info) } else { Self::Output(info) }
                }
            }
        }
    }
}

/// How much text is made before its memory is freed: each reset costs as much as a short column.
const ENOUGH: usize = 64 * 1024;

/// Takes the digest of rows of one shape, row by row. Its settings must be in force while rows are added.
pub struct Digester {
    /// Where in a row each column stands, from 0, and how its text is found.
    columns: Vec<(usize, Text)>,
    /// What the text of some rows takes is thrown away with this context.
    scratch: pg_sys::MemoryContext,
    /// How much text was made since then.
    unfreed: usize,
    /// Whether the database's text is not UTF-8.
    foreign: bool,
    settled: bool,
    row: Vec<u8>,
    day: Day,
    sum: Digest,
}

impl Digester {
    /// For rows of this shape.
    pub fn new(desc: pg_sys::TupleDesc) -> Self {
        Self::of(0..unsafe { (*desc).natts } as usize, desc)
    }

    /// For some columns, counted from 0, of rows of this shape.
    pub fn of(places: impl IntoIterator<Item = usize>, desc: pg_sys::TupleDesc) -> Self {
        let desc = unsafe { PgTupleDesc::from_pg_unchecked(desc) };
        let type_of = |place: usize| desc.get(place).expect("the column is there").atttypid;
        let columns: Vec<(usize, Text)> =
            places.into_iter().map(|place| (place, Text::of(type_of(place)))).collect();
        let settled = columns.iter().all(|(place, column)| {
            !matches!(column, Text::Output(_) | Text::Varlena(_)) || SETTLED.contains(&type_of(*place))
        });
        unsafe {
            let encoding = pg_sys::GetDatabaseEncoding();
            Self {
                columns,
                settled,
                scratch: pg_sys::AllocSetContextCreateInternal(
                    pg_sys::CurrentMemoryContext,
                    c"pg_backfill row text".as_ptr(),
                    pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                    pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                    pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
                ),
                unfreed: 0,
                foreign: encoding != pg_sys::pg_enc::PG_UTF8 as i32
                    && encoding != pg_sys::pg_enc::PG_SQL_ASCII as i32,
                row: Vec::new(),
                day: Day::default(),
                sum: Digest::default(),
            }
        }
    }

    /// Whether a query's own settings do for the digest too: nothing in the rows' text depends on the zone or
    /// the `search_path`.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Adds the row in the slot, all of whose attributes have been fetched.
    pub unsafe fn add(&mut self, slot: *mut pg_sys::TupleTableSlot) {
        let row = unsafe { self.of_row(slot) };
        self.sum += row;
    }

    /// The digest of the row in the slot by itself.
    pub unsafe fn of_row(&mut self, slot: *mut pg_sys::TupleTableSlot) -> Digest {
        unsafe {
            let outer = pg_sys::MemoryContextSwitchTo(self.scratch);
            self.row.clear();
            for i in 0..self.columns.len() {
                let place = self.columns[i].0;
                if *(*slot).tts_isnull.add(place) {
                    self.row.extend_from_slice(&u32::MAX.to_le_bytes());
                    continue;
                }
                let start = self.row.len();
                self.row.extend_from_slice(&[0; 4]);
                self.write(i, *(*slot).tts_values.add(place));
                let length = (self.row.len() - start - 4) as u32;
                self.row[start..start + 4].copy_from_slice(&length.to_le_bytes());
            }
            pg_sys::MemoryContextSwitchTo(outer);
            self.unfreed += self.row.len();
            if self.unfreed > ENOUGH {
                pg_sys::MemoryContextReset(self.scratch);
                self.unfreed = 0;
            }
        }
        of_text(&self.row)
    }

    /// What the rows so far add up to.
    pub fn digest(&self) -> Digest {
        self.sum
    }

    unsafe fn write(&mut self, column: usize, value: pg_sys::Datum) {
        let (row, day) = (&mut self.row, &mut self.day);
        unsafe {
            match &mut self.columns[column].1 {
                Text::Bool => row.push(if value.value() as u8 == 0 { b'f' } else { b't' }),
                Text::Int2 => integer(row, i64::from(value.value() as i16)),
                Text::Int4 => integer(row, i64::from(value.value() as i32)),
                Text::Int8 => integer(row, value.value() as i64),
                Text::Date => date(row, day, value.value() as i32),
                Text::Timestamp => timestamp(row, day, value.value() as i64, ""),
                Text::Timestamptz => timestamp(row, day, value.value() as i64, "+00"),
                Text::Uuid => uuid(row, &*value.cast_mut_ptr::<[u8; 16]>()),
                Text::Verbatim => {
                    let text = varlena(value);
                    self.append(text);
                }
                Text::Output(output) => {
                    let text = pg_sys::OutputFunctionCall(&mut **output, value);
                    self.append(CStr::from_ptr(text).to_bytes());
                }
                Text::Varlena(output) => {
                    let whole = pg_sys::pg_detoast_datum(value.cast_mut_ptr());
                    let text = pg_sys::OutputFunctionCall(&mut **output, whole.into());
                    self.append(CStr::from_ptr(text).to_bytes());
                }
            }
        }
    }

    unsafe fn append(&mut self, text: &[u8]) {
        if !self.foreign {
            self.row.extend_from_slice(text);
            return;
        }
        unsafe {
            let converted = pg_sys::pg_server_to_any(
                text.as_ptr().cast(),
                text.len() as i32,
                pg_sys::pg_enc::PG_UTF8 as i32,
            );
            // Where nothing had to be converted the text itself comes back, which has no end.
            if converted.cast_const().cast() == text.as_ptr() {
                self.row.extend_from_slice(text);
            } else {
                self.row.extend_from_slice(CStr::from_ptr(converted).to_bytes());
            }
        }
    }
}

/// The bytes of a text-like value, which live as long as the scratch context does.
unsafe fn varlena<'a>(value: pg_sys::Datum) -> &'a [u8] {
    unsafe {
        let packed = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
        std::slice::from_raw_parts(
            pgrx::varlena::vardata_any(packed).cast(),
            pgrx::varlena::varsize_any_exhdr(packed),
        )
    }
}

fn integer(row: &mut Vec<u8>, value: i64) {
    if value < 0 {
        row.push(b'-');
    }
    digits(row, value.unsigned_abs(), 1);
}

/// The decimal digits of a number, padded with zeros to a width.
fn digits(row: &mut Vec<u8>, mut value: u64, width: usize) {
    let mut buffer = [b'0'; 20];
    let mut at = buffer.len();
    while value > 0 {
        at -= 1;
        buffer[at] = b'0' + (value % 10) as u8;
        value /= 10;
    }
    row.extend_from_slice(&buffer[at.min(buffer.len() - width)..]);
}

/// Year, month and day in the proleptic Gregorian calendar of a day counted from 2000-01-01, after Howard
/// Hinnant's `civil_from_days`. Year 0 is 1 BC.
fn civil(day: i64) -> (i64, u64, u64) {
    let z = day + 730_425; // days from 0000-03-01
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    (year, month as u64, (doy - (153 * mp + 2) / 5 + 1) as u64)
}

/// The text of the day that was written last: rows of one slice have few different ones.
#[derive(Default)]
struct Day {
    number: i64,
    text: Vec<u8>,
    /// Whether " BC" must follow.
    bc: bool,
}

impl Day {
    /// Writes year, month and day; says whether " BC" must follow.
    fn write(&mut self, row: &mut Vec<u8>, number: i64) -> bool {
        if self.text.is_empty() || self.number != number {
            let (year, month, day) = civil(number);
            self.number = number;
            self.bc = year <= 0;
            self.text.clear();
            digits(&mut self.text, if self.bc { 1 - year } else { year } as u64, 4);
            self.text.push(b'-');
            digits(&mut self.text, month, 2);
            self.text.push(b'-');
            digits(&mut self.text, day, 2);
        }
        row.extend_from_slice(&self.text);
        self.bc
    }
}

fn date(row: &mut Vec<u8>, day: &mut Day, number: i32) {
    match number {
        i32::MAX => row.extend_from_slice(b"infinity"),
        i32::MIN => row.extend_from_slice(b"-infinity"),
        _ => {
            if day.write(row, number.into()) {
                row.extend_from_slice(b" BC");
            }
        }
    }
}

fn timestamp(row: &mut Vec<u8>, day: &mut Day, micros: i64, offset: &str) {
    const DAY: i64 = 86_400_000_000;
    match micros {
        i64::MAX => return row.extend_from_slice(b"infinity"),
        i64::MIN => return row.extend_from_slice(b"-infinity"),
        _ => (),
    }
    let bc = day.write(row, micros.div_euclid(DAY));
    let time = micros.rem_euclid(DAY) as u64;
    let seconds = time / 1_000_000;
    let two = |n: u64| [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
    for (mark, part) in [(b' ', seconds / 3600), (b':', seconds / 60 % 60), (b':', seconds % 60)] {
        row.push(mark);
        row.extend_from_slice(&two(part));
    }
    let mut fraction = time % 1_000_000;
    if fraction > 0 {
        let mut width = 6;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            width -= 1;
        }
        row.push(b'.');
        digits(row, fraction, width);
    }
    row.extend_from_slice(offset.as_bytes());
    if bc {
        row.extend_from_slice(b" BC");
    }
}

fn uuid(row: &mut Vec<u8>, bytes: &[u8; 16]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            row.push(b'-');
        }
        row.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}
