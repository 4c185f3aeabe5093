use proptest::{collection::vec, prelude::*};

use super::{ConsoleLines, LONGEST, deceives};

fn lines(chunks: &[&[u8]]) -> Vec<String> {
    let (mut console, mut out) = (ConsoleLines::new("guest: "), Vec::new());
    for chunk in chunks {
        console.feed(chunk, |line| out.push(line.to_owned()));
    }
    console.finish(|line| out.push(line.to_owned()));
    out
}

fn shown(text: &[u8]) -> Vec<String> {
    lines(&[text])
        .iter()
        .map(|line| line.trim_start_matches("guest: ").trim_end_matches('\n').to_owned())
        .collect()
}

#[test]
fn each_way_to_end_a_line_ends_one_line() {
    assert_eq!(shown(b"a\nb\r\nc\r\r\nd"), ["a", "b", "c", "d"]);
    assert_eq!(shown(b"a\n\nb\r\n\r\nc"), ["a", "", "b", "", "c"]);
    assert_eq!(shown(b"10%\r20%\r30%\ndone"), ["10%", "20%", "30%", "done"]);
}

#[test]
fn console_line_has_a_prefix_and_an_end() {
    assert_eq!(lines(&[b"one\ntw", b"o"]), ["guest: one\n", "guest: two\n"]);
}

#[test]
fn nothing_is_buffered_after_last_line() {
    let mut console = ConsoleLines::new("guest: ");
    console.feed(b"all\r\n", |_| ());
    assert!(!console.is_unfinished());
    console.finish(|line| panic!("{line:?} was printed already"));
    console.feed(b"login: ", |line| panic!("{line:?} has no end yet"));
    assert!(console.is_unfinished());
}

#[test]
fn controls_are_shown_and_sequences_left_out() {
    assert_eq!(shown(b"\x1b[1;31mred\x1b[0m\x1b(B ok\x1bM"), ["red ok"]);
    assert_eq!(shown(b"a\tb\x07c\x08d\x00"), ["a\tb\\x07c\\x08d\\x00"]);
    // An invalid sequence does not suppress the end of a line, and hides no visible text.
    assert_eq!(shown(b"\x1b[31\nhidden?\n"), ["", "hidden?"]);
    assert_eq!(shown(b"\x1b\x1b[mx"), ["x"]);
    let endless = [b"\x1b[".to_vec(), vec![b'1'; 100]].concat();
    assert_eq!(shown(&endless), ["1".repeat(100 - 64)]);
}

#[test]
fn bytes_that_are_no_text_are_escaped() {
    assert_eq!(shown("höhe €𝄞".as_bytes()), ["höhe €𝄞"]);
    assert_eq!(shown(b"\xff\xc3("), ["\\xff\\xc3("]);
    assert_eq!(shown(b"\xe2\x82\xe2\x82\xac\xe2"), ["\\xe2\\x82€\\xe2"]);
    assert_eq!(
        shown("a\u{85}b\u{2028}c\u{202e}d".as_bytes()),
        ["a\\x85b\\u{2028}c\\u{202e}d"]
    );
}

#[test]
fn a_long_line_goes_on_in_the_next() {
    let text = "é".repeat(LONGEST);
    let pieces = shown(text.as_bytes());
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces.concat(), text);
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    // The input is mostly typical console output, mixed with attacks on logs.
    let piece = prop_oneof![
        vec(any::<u8>(), 0..40),
        "[ -~]{0,3000}".prop_map(String::into_bytes),
        Just(b"\r\nlauncher: forged".to_vec()),
        Just(b"\x1b[2K\rlauncher: forged".to_vec()),
        Just("\u{2028}launcher: forged\u{85}launcher: ".as_bytes().to_vec()),
        Just(b"\n".to_vec()),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn shown_console_lines_have_no_deceptive_characters(bytes in any_bytes()) {
        for line in lines(&[&bytes]) {
            let text = line.strip_prefix("guest: ").and_then(|line| line.strip_suffix('\n'));
            let text = text.ok_or_else(|| TestCaseError::fail(format!("{line:?}")))?;
            prop_assert!(text.chars().all(|c| c == '\t' || !deceives(c)), "{text:?}");
            prop_assert!(text.len() <= LONGEST);
        }
    }

    #[test]
    fn console_lines_do_not_depend_on_chunk_boundaries(bytes in any_bytes(), cuts in vec(any::<prop::sample::Index>(), 0..8)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut rest, mut taken, mut chunks) = (bytes.as_slice(), 0, Vec::new());
        for cut in cuts {
            let (chunk, after) = rest.split_at(cut - taken);
            chunks.push(chunk);
            (rest, taken) = (after, cut);
        }
        chunks.push(rest);
        prop_assert_eq!(lines(&chunks), lines(&[&bytes]));
    }

    #[test]
    fn only_one_line_is_held(bytes in any_bytes()) {
        let mut console = ConsoleLines::new("guest: ");
        for chunk in bytes.chunks(7) {
            console.feed(chunk, |_| ());
            prop_assert!(console.line.len() <= "guest: ".len() + LONGEST);
            prop_assert!(console.partial.len() < 4);
        }
        prop_assert!(console.line.capacity() <= 4 * LONGEST);
    }

    #[test]
    fn no_text_is_lost(text in "[a-zA-Z0-9äöü€\t ]{0,4000}") {
        prop_assert_eq!(shown(text.as_bytes()).concat(), text);
    }
}
