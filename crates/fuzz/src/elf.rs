//! Files of the ELF format, for the reader of symbol tables.

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const SYMBOL: usize = 24;

/// Where the code of the seed stands, in the file and in memory.
const CODE: u64 = 0x40;
const ADDRESS: u64 = 0x1000;

/// Asked for where code may be: in the seed's functions, between them, and where nothing is.
const PLACES: [u64; 7] = [0, CODE, CODE + 8, CODE + 16, CODE + 40, 4096, u64::MAX];

/// There are as many answers as addresses, and a name is no longer than one may be.
pub(crate) fn read(bytes: &[u8]) -> String {
    match mainstay_profile::fuzz::functions(bytes, &PLACES) {
        Ok(names) => {
            assert!(names.len() <= PLACES.len(), "more names than were asked for");
            let named: Vec<&String> = names.iter().flatten().collect();
            // What is no text is three bytes for each that was there.
            assert!(named.iter().all(|name| name.len() <= 3 * (8 << 10)), "a name without an end");
            let known = "known ".repeat(names.len());
            let texts = named.iter().map(|name| if name.is_empty() { "empty " } else { "text " });
            known + &texts.collect::<String>()
        }
        Err(error) => format!("not read: {:?}", error.kind()),
    }
}

/// A program of one loaded segment with two functions, once with a table of all symbols and once with the dynamic one.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![program(2), program(11)]
}

fn program(table: u32) -> Vec<u8> {
    let names = b"\0first\0second\0";
    let symbols = [(1_u32, ADDRESS, 16_u64), (7, ADDRESS + 32, 16)];
    let mut bytes = vec![0; HEADER];
    let segments = bytes.len() as u64;
    let mut segment = vec![0; PROGRAM_HEADER];
    put(&mut segment, 0, &1_u32.to_le_bytes());
    put(&mut segment, 8, &CODE.to_le_bytes());
    put(&mut segment, 16, &ADDRESS.to_le_bytes());
    put(&mut segment, 32, &64_u64.to_le_bytes());
    bytes.extend(segment);
    let symbols_at = bytes.len() as u64;
    for (name, address, size) in symbols {
        let mut symbol = vec![0; SYMBOL];
        put(&mut symbol, 0, &name.to_le_bytes());
        put(&mut symbol, 4, &[2]);
        put(&mut symbol, 8, &address.to_le_bytes());
        put(&mut symbol, 16, &size.to_le_bytes());
        bytes.extend(symbol);
    }
    let names_at = bytes.len() as u64;
    bytes.extend(names);
    let sections = bytes.len() as u64;
    let symbols_len = (symbols.len() * SYMBOL) as u64;
    for (kind, at, len, link) in
        [(0_u32, 0, 0, 0_u32), (table, symbols_at, symbols_len, 2), (3, names_at, names.len() as u64, 0)]
    {
        let mut section = vec![0; SECTION_HEADER];
        put(&mut section, 4, &kind.to_le_bytes());
        put(&mut section, 24, &at.to_le_bytes());
        put(&mut section, 32, &len.to_le_bytes());
        put(&mut section, 40, &link.to_le_bytes());
        bytes.extend(section);
    }
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 32, &segments.to_le_bytes());
    put(&mut bytes, 40, &sections.to_le_bytes());
    for (at, value) in [(54, 56_u16), (56, 1), (58, 64), (60, 3)] {
        put(&mut bytes, at, &value.to_le_bytes());
    }
    bytes
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes.iter_mut().skip(at).zip(value).for_each(|(byte, value)| *byte = *value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_have_functions() {
        for seed in seeds() {
            let names = mainstay_profile::fuzz::functions(&seed, &PLACES).unwrap();
            let names: Vec<_> = names.iter().map(Option::as_deref).collect();
            assert_eq!(names, [Some("first"), Some("first"), None, Some("second")]);
        }
    }
}
