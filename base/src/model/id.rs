//! Ids of targets and chains. They must not change between releases: a newer release looks up
//! existing records.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::identity::Identity;

/// Id of a target, from the user and command line, and for `puppet apply` the working directory: 16
/// hexadecimal digits.
pub fn target_id(uid: u32, apply_in: Option<&[u8]>, arguments: &[Vec<u8>]) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write_u32(uid);
    hasher.write_u8(u8::from(apply_in.is_some()));
    for bytes in apply_in
        .into_iter()
        .chain(arguments.iter().map(Vec::as_slice))
    {
        write(&mut hasher, bytes);
    }
    format!("{:016x}", hasher.finish128().h1)
}

/// Id of the chain that a run begins: 8 hexadecimal digits, the same for every request of that run.
pub fn chain_id(run: Identity, boot: &str) -> String {
    let mut hasher = SipHasher13::new();
    write(&mut hasher, boot.as_bytes());
    hasher.write_i32(run.pid);
    hasher.write_u64(run.start);
    format!("{:08x}", hasher.finish128().h1 >> 32)
}

/// Hashes a part with its length in front, so that different lists never give the same bytes.
fn write(hasher: &mut SipHasher13, bytes: &[u8]) {
    hasher.write_u64(bytes.len() as u64);
    hasher.write(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(uid: u32, apply_in: Option<&[u8]>, line: &str) -> String {
        let words: Vec<Vec<u8>> = line.split(' ').map(|w| w.as_bytes().to_vec()).collect();
        target_id(uid, apply_in, &words)
    }

    #[test]
    fn every_part_and_every_boundary_counts() {
        let one = id(0, None, "ab c");
        for other in [
            id(0, None, "a bc"),
            id(1, None, "ab c"),
            id(0, Some(b"/a"), "ab c"),
            id(0, Some(b"/b"), "ab c"),
        ] {
            assert_ne!(one, other);
        }
        assert_ne!(id(0, Some(b"/a"), "x"), id(0, Some(b"/b"), "x"));
    }

    #[test]
    fn no_id_ever_changes() {
        assert_eq!(id(0, None, "puppet agent -t"), "410d3abb321270ae");
        assert_eq!(id(7, Some(b"/d"), "puppet apply x.pp"), "17666dbaff98c985");
        let run = Identity { pid: 42, start: 7 };
        assert_eq!(chain_id(run, "boot"), "83dd7bed");
    }
}
