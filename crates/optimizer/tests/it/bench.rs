//! The measurement: its arithmetic, its sizes, its refusals. No speed is asserted,
//! since tests share their machine.

use formats::Format;
use optimizer::Error;
use optimizer::bench::{Plan, Size, run};

#[test]
fn rows_add_up() {
    let size = Size { name: "tiny".to_owned(), tensor_lengths: vec![20_000, 0, 5] };
    let plan = Plan { sizes: vec![size], formats: Format::ALL.to_vec(), warm_up: 1, repeats: 4 };
    let rows = run(&plan).unwrap();
    assert_eq!(rows.len(), Format::ALL.len());
    for (row, format) in rows.iter().zip(Format::ALL) {
        assert_eq!((row.format, row.size.as_str()), (format, "tiny"));
        assert_eq!((row.tensors, row.parameters), (3, 20_005));
        let bytes = |length| format.state_bytes(length);
        let state = (bytes(20_000) + bytes(0) + bytes(5)) as f64 / 20_005.0;
        assert_eq!(row.state_bytes_per_parameter, state);
        assert!((row.bytes_per_parameter - (12.0 + 2.0 * state)).abs() < 1e-12);
        assert!(row.ms_min <= row.ms_median && row.ms_median <= row.ms_max);
        let gb_per_s = row.bytes_per_parameter * 20_005.0 / row.ms_median / 1e6;
        assert!((row.gb_per_s / gb_per_s - 1.0).abs() < 1e-12);
        assert_eq!(row.share_of_copy, row.gb_per_s / row.copy_gb_per_s);
        assert_eq!((row.device, row.mode), ("cpu", "eager"));
    }
}

#[test]
fn sizes_are_read() {
    let lengths = |text: &str| text.parse::<Size>().unwrap().tensor_lengths;
    assert_eq!(lengths("7"), [7]);
    assert_eq!(lengths("100m"), [100_000_000]);
    assert_eq!(lengths("1gi"), [1 << 30]);
    assert_eq!(lengths("16x64mi"), [64 << 20; 16]);
    assert_eq!("3x2k".parse::<Size>().unwrap().name, "3x2k");
    for bad in
        ["", "x", "1x", "x5", "-1", "1tb", "1 m", "1.5m", "99999999999999999999", "9x9999999999gi"]
    {
        assert_eq!(bad.parse::<Size>(), Err(Error::BenchSize { found: bad.to_owned() }), "{bad}");
    }
}

#[test]
fn a_size_beyond_memory_is_refused_before_anything_runs() {
    if !std::path::Path::new("/proc/meminfo").exists() {
        return;
    }
    let sizes = vec!["64gi".parse().unwrap(), "1000gi".parse().unwrap()];
    let plan = Plan { sizes, formats: vec![Format::Fp32], warm_up: 0, repeats: 1 };
    let message = run(&plan).unwrap_err().to_string();
    assert!(message.contains("bytes of free memory, found"), "{message}");
}
