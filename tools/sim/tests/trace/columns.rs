//! Tables whose columns the user names: the meaning of lines, and the errors for malformed ones.

use octavo_sim::SourceError;
use octavo_sim::trace::{Columns, Format, Options, Separator};

use crate::pages;

fn options(columns: &str) -> Options {
    Options { columns: Some(columns.parse().unwrap()), ..Options::default() }
}

fn table(options: &Options, text: impl AsRef<[u8]>) -> Result<Vec<u64>, SourceError> {
    pages(Format::Csv, text, options)
}

#[test]
fn columns_stand_in_any_order_and_count_in_their_units() {
    let expected = [1, 2, 0, 5];
    for (columns, text) in [
        ("time,op,offset,size", "0.5,r,4096,8192\n0.75,W,0,1\n1,read,20480,4096\n"),
        ("size,offset,op", "8192,4096,0\n1,0,1\n4096,20480,Write,and,more\n"),
        ("offset:sectors,size:sectors", "8,16\n0,1\n40,8\n"),
        ("offset:pages,size:blocks,-,time:ns", "1,2,x,1\n0,1,,2\n5,1,y,3\n"),
        ("offset:kib,-,size:512", "4,z,16\n0,,1\n20,,8\n"),
    ] {
        assert_eq!(table(&options(columns), text).unwrap(), expected, "{columns}");
    }
    let whole_page = Options { page_bytes: 65_536, ..options("offset,size") };
    assert_eq!(table(&whole_page, "65535,2\n").unwrap(), [0, 1]);
}

#[test]
fn other_separators_quotes_and_headers_are_read() {
    let parsed = |columns: &str| columns.parse::<Columns>().unwrap();
    for (columns, text) in [
        (parsed("offset,size").separated_by(Separator::Byte(b';')), "4096;4096\r\n\n0;1\r\n"),
        (parsed("-,offset,size").separated_by("tab".parse().unwrap()), "a b\t4096\t4096\n\"c\td\"\t0\t1"),
        (parsed("offset,size").separated_by(Separator::Space), "  4096 \t 4096 x\n0 1\n"),
        (parsed("volume,offset,size"), "\"vol, \"\"1\"\"\",4096,4096\n\"vol, \"\"1\"\"\", 0 ,1\n"),
        (parsed("offset,size").below(2), "# a table\nOffset,Size\n4096,4096\n0,1\n"),
        (parsed("size=Length,offset=Start:sectors"), "time, START ,x,Length\n9,8,q,4096\n9,0,,1\n"),
        (parsed("offset=at:this,size=Bytes").below(2), "# more\nBytes,at:this\n4096,4096\n1,0\n"),
    ] {
        let options = Options { columns: Some(columns), ..Options::default() };
        assert_eq!(table(&options, text).unwrap(), [1, 0], "{text}");
    }
}

/// Formats with their own names, described by their columns.
#[test]
fn block_traces_that_have_a_format_are_the_same_by_their_columns() {
    for (format, columns, text) in [
        (Format::Alibaba, "volume,op,offset,size,time", "3,R,0,4096,1\n3,W,8192,8192,2\n"),
        (Format::Tencent, "time,offset:sectors,size:sectors,op,volume", "1,0,8,0,3\n1,16,16,1,3\n"),
        (Format::Msr, "time,-,volume,op,offset,size,-", "1,a,0,Read,0,512,1\n2,a,0,Write,8192,8192,1\n"),
    ] {
        let by_format = pages(format, text, &Options::default()).unwrap();
        // A table numbers its volumes in order of appearance; the formats have numbers of their
        // own.
        let by_columns = table(&options(columns), text).unwrap();
        assert_eq!(
            by_format.iter().map(|page| page & 0xff_ffff_ffff).collect::<Vec<_>>(),
            by_columns,
            "{columns}"
        );
    }
    let two = table(&options("volume,offset"), "a,0\nb,0\na,4096\n").unwrap();
    assert_eq!(two, [0, 1 << 40, 1]);
}

#[test]
fn keys_are_pages_and_objects_of_several_pages_follow_each_other() {
    let keys = table(&options("key"), "7\n/index.html\n7\n/index.html\n007\n18446744073709551615\n").unwrap();
    assert_eq!((keys[0], keys[2], keys[5]), (7, 7, u64::MAX));
    assert_eq!(keys[1], keys[3]);
    assert!(keys[4] != 7 && keys[1] != keys[4]);
    let objects = table(&options("key,size"), "1,8193\n2,1\n1,1\n3,0\n").unwrap();
    assert_eq!(objects.len(), 5);
    assert_eq!((objects[1], objects[2], objects[4]), (objects[0] + 1, objects[0] + 2, objects[0]));
    let tenants = table(&options("volume,key"), "a,1\nb,1\na,1\n").unwrap();
    assert!(tenants[0] == tenants[2] && tenants[0] != tenants[1]);
}

#[test]
fn discards_and_flushes_are_no_accesses() {
    assert_eq!(table(&options("op,offset"), "r,0\nD,4096\nflush,0\nw,8192\n").unwrap(), [0, 2]);
}

/// The columns of CacheLib's and Twitter's traces: a word for each kind of request, and a number of
/// requests in a line.
#[test]
fn a_count_repeats_a_request_and_words_of_key_value_stores_are_known() {
    let text = "key,op,size,op_count,key_size\n11,SET,82,1,40\n12,GET,0,3,40\n11,GET_LEASE,0,0,40\n\
                13,DELETE,0,9,40\n";
    assert_eq!(table(&options("key=key,op=op,count=op_count"), text).unwrap(), [11, 12, 12, 12]);
    let twice = table(&options("count,offset,size"), "2,4096,8192\n1.0,0,1\n").unwrap();
    assert_eq!(twice, [1, 2, 1, 2, 0]);
    // Longer than a chunk: a request is yielded in parts.
    let many = table(&options("count,offset,size"), "100001,4096,12288\n1,0,1\n").unwrap();
    assert_eq!(many.len(), 300_004);
    assert!(many.chunks(3).take(100_001).all(|pass| pass == [1, 2, 3]));
    assert_eq!(many.last(), Some(&0));
    let twitter = "0,k1,10,100,5,get,0\n0,k1,10,0,5,gets,0\n1,k1,10,100,5,cas,300\n2,k1,10,0,5,delete,0\n";
    assert_eq!(table(&options("time,key,-,-,-,op"), twitter).unwrap().len(), 3);
    let ibm = options("time:ms,op,key,size").columns.unwrap().separated_by(Separator::Space);
    let ibm = Options { columns: Some(ibm), ..Options::default() };
    let log = "1219008 REST.PUT.OBJECT 8d4f 1056\n1221974 REST.HEAD.OBJECT 39d1 528\n\
               1232437 REST.GET.OBJECT 8d4f 1056 0 1055\n";
    assert_eq!(table(&ibm, log).unwrap().len(), 2);
}

/// Numbers as pandas, spreadsheets and tracing scripts write them.
#[test]
fn numbers_and_times_are_read_as_table_programs_write_them() {
    for text in [
        "0.1,1.0,4096.0,8192.0\n",
        "2026-01-02T03:04:05.6Z,R,4.096e3,8.192e+03\n",
        "2026-01-02 03:04:05,0.0,0x1000,0X2000\n",
    ] {
        assert_eq!(table(&options("time,op,offset,size"), text).unwrap(), [1, 2], "{text}");
    }
    for (format, text) in [
        (Format::Alibaba, "0.0,R,4096.0,8192.0,1.5e15\n"),
        (Format::Tencent, "1.0,8.0,16.0,1.0,0.0\n"),
        (Format::Msr, "1.28e17,a,0.0,Read,4096.0,8192.0,1.0\n"),
        (Format::Spc, "0.0,8.0,8192.0,R,0.5\n"),
    ] {
        assert_eq!(pages(format, text, &Options::default()).unwrap(), [1, 2], "{text}");
    }
    for wrong in ["1,R,4.096,1\n", "1,R,4.000,1\n", "1,R,0,\"4,096\"\n", "1,R,-1.0,1\n", "1,R,nan,1\n"] {
        assert!(table(&options("time,op,offset,size"), wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_error_for_a_malformed_line_has_its_line_and_column() {
    for (columns, line, expected) in [
        ("time,op,offset,size", "1,r,x,1", "sample:3: column 3 (offset): \"x\" is not a whole number"),
        ("time,op,offset,size", "1,q,0,1", "sample:3: column 2 (op): \"q\" is not an operation"),
        ("time,op,offset,size", "x,r,0,1", "sample:3: column 1 (time): \"x\" is not a number"),
        ("time,op,offset,size", "1,r,0", "sample:3: column 4 (size): the line has only 3 columns"),
        ("time,op,offset,size", "1,r,0,-1", "column 4 (size): \"-1\" is not a whole number"),
        (
            "time,op,offset,size:sectors",
            "1,r,0,36028797018963968",
            "column 4 (size): 36028797018963968 lies past 2^64",
        ),
        ("-,-,offset,-", "1,r,18446744073709551615,1", "sample:3: the request ends past page 2^40"),
        ("-,-,-,key", "1,r,0,", "column 4 (key): the field is empty"),
        ("-,-,offset,count", "1,r,0,16777217", "column 4 (count): 16777217 requests; the most"),
    ] {
        let said = table(&options(columns), format!("1,r,0,1\n\n{line}\n")).unwrap_err().to_string();
        assert!(said.contains(expected), "{line}: {said}");
        let lenient = Options { skip_bad: true, ..options(columns) };
        assert_eq!(table(&lenient, format!("1,r,0,1\n{line}\n1,r,0,1\n")).unwrap().len(), 2, "{line}");
    }
    let said = table(&options("offset=LBA"), "time,Offset\n1,2\n").unwrap_err().to_string();
    assert!(said.contains("sample:1: no column is called \"LBA\"; the table has time, Offset"), "{said}");
}

#[test]
fn invalid_columns_are_refused_and_the_error_lists_the_known_ones() {
    for (columns, expected) in [
        ("", "either an offset or a key is needed"),
        ("time,op,size", "either an offset or a key is needed"),
        ("offset,key", "either an offset or a key is needed"),
        ("offset,offset", "offset is given twice"),
        ("lba", "there is no column \"lba\""),
        ("offset:miles", "\"miles\" is not a unit of offset"),
        ("offset:0", "\"0\" is not a unit of offset"),
        ("op:ms,offset", "op has no unit"),
        ("count:ms,offset", "count has no unit"),
        ("count,count,offset", "count is given twice"),
        ("time:hours,offset", "a time is in s, ms, us or ns"),
        ("offset=LBA,size", "some columns have names and some do not"),
    ] {
        let said = columns.parse::<Columns>().unwrap_err();
        assert!(said.contains(expected) && said.contains("time,op,offset:sectors"), "{columns}: {said}");
    }
    for wrong in ["", "ab", "x", "\"", "é"] {
        assert!(wrong.parse::<Separator>().unwrap_err().contains("semicolon"), "{wrong}");
    }
    let said = pages(Format::Csv, "1\n", &Options::default()).unwrap_err().to_string();
    assert!(said.contains("--columns"), "{said}");
    let said = pages(Format::U64, "1\n", &options("key")).unwrap_err().to_string();
    assert!(said.contains("the format is u64"), "{said}");
}

/// IBM's object store logs no size for a deletion.
#[test]
fn a_line_that_is_no_access_may_be_short() {
    let options = options("-,op,key,size");
    let text = "1,REST.DELETE.OBJECT,7\n2,REST.GET.OBJECT,7,100\n";
    assert_eq!(table(&options, text).unwrap().len(), 1);
    let said = table(&options, "1,REST.GET.OBJECT,7\n").unwrap_err().to_string();
    assert!(said.contains("column 4 (size): the line has only 3 columns"), "{said}");
}

#[test]
fn a_line_that_begins_with_a_number_sign_is_a_comment_where_a_number_is_due() {
    let text = "# made by hand\n1,4096\n# the end\n";
    assert_eq!(table(&options("time,offset"), text).unwrap(), [1]);
    let keys = table(&options("key"), "#first\n#second\n").unwrap();
    assert_eq!(keys.len(), 2, "keys may begin with it");
}

/// No text can make the reader panic: each line is accesses, or none, or an error, and a text in
/// UTF-16 is an error as a whole.
#[test]
fn random_bytes_are_an_error_or_pages_and_never_a_panic() {
    const PARTS: &[u8] =
        b",|\"|\"\"|\n|\r\n|r|0|4096|18446744073709551615|-| |\t|;|\0|\xff\xfe|W|1e999|volume|\\|9999999";
    let parts: Vec<&[u8]> = PARTS.split(|byte| *byte == b'|').collect();
    let mut random = octavo_random::Random::new(7);
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    let columns = [
        "time,op,offset,size,volume",
        "key,size",
        "volume,key",
        "offset:pages,size:pages",
        "offset=0,size=r",
        "-,-,-,-,offset:1073741824",
    ];
    for round in 0..6000 {
        let text: Vec<u8> = (0..below(40)).flat_map(|_| parts[below(parts.len())]).copied().collect();
        let parsed: Columns = columns[round % columns.len()].parse().unwrap();
        let separator = ["comma", "semicolon", "tab", "space"][below(4)].parse().unwrap();
        let parsed = parsed.separated_by(separator).below(below(3) as u64);
        // Not one line is malformed then, but the text, so it is an error with `skip_bad` too.
        let utf16 = text.starts_with(b"\xff\xfe");
        for skip_bad in [true, false] {
            let options = Options { columns: Some(parsed.clone()), skip_bad, ..Options::default() };
            match table(&options, &text) {
                Ok(_) => assert!(!utf16, "UTF-16 is refused: {}", text.escape_ascii()),
                Err(error) if skip_bad && !utf16 => {
                    panic!("skipped lines are no error: {error}: {}", text.escape_ascii())
                }
                Err(error) => assert!(error.to_string().starts_with("sample:"), "{error}"),
            }
        }
    }
}
