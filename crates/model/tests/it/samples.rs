//! Numbers that look random and are the same everywhere, and small networks to try them on.

use model::{Batch, Config, Cpu, Dimensions, Element, Gpt, Layout, Purpose};

/// A stream of numbers: a 64-bit multiplicative generator, upper bits used.
pub struct Samples(u64);

impl Samples {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// The next number in -1..1.
    pub fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).rotate_left(17);
        (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// That many numbers in -range..range.
    pub fn vector<T: Element>(&mut self, length: usize, range: f64) -> Vec<T> {
        (0..length).map(|_| T::from_f64(range * self.next())).collect()
    }

    /// That many ids below a vocabulary.
    pub fn ids(&mut self, length: usize, vocabulary: usize) -> Vec<u32> {
        let id = |x: f64| (((x + 1.0) / 2.0) * vocabulary as f64) as u32;
        (0..length).map(|_| id(self.next()).min(vocabulary as u32 - 1)).collect()
    }
}

/// V, context, C, L, H.
pub fn config(dimensions: [usize; 5]) -> Config {
    let [vocabulary, context, channels, layers, heads] = dimensions;
    Config::new(Dimensions { vocabulary, context, channels, layers, heads }).unwrap()
}

/// Parameters away from their special initial values, so that no gradient is zero by accident.
pub fn parameters<T: Element>(layout: &Layout, seed: u64) -> Vec<T> {
    let mut samples = Samples::new(seed);
    let mut values = samples.vector::<T>(layout.parameters(), 0.3);
    for slot in layout.slots().iter().filter(|slot| slot.role == model::Role::Gain) {
        for value in &mut values[slot.range()] {
            *value += T::ONE;
        }
    }
    values
}

/// A network for training on the CPU.
pub fn gpt<T: Element>(config: Config, rows: usize, time: usize) -> Gpt<Cpu<T>> {
    Gpt::new(Cpu::new(), config, Batch { rows, time }, Purpose::Training).unwrap()
}

/// Loss in nats and gradients of one batch with `loss_scale` 1.
pub fn gradients<T: Element>(gpt: &mut Gpt<Cpu<T>>, parameters: &Vec<T>) -> (f64, Vec<T>) {
    let mut gradients = vec![T::from_f64(f64::NAN); parameters.len()];
    gpt.forward_backward(parameters, &mut gradients, false).unwrap();
    (gpt.loss().unwrap().nats, gradients)
}

/// |a - b| / |b| over whole vectors.
pub fn relative_distance<T: Element>(a: &[T], b: &[T]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a.to_f64() - b.to_f64()));
    difference / norm(&mut b.iter().map(|b| b.to_f64()))
}

/// A file beside the tests.
pub fn golden_path(name: &str) -> std::path::PathBuf {
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it for tests");
    std::path::Path::new(&crate_folder).join("tests/it/golden").join(name)
}

/// Compares with a golden file, or rewrites it where `UPDATE_GOLDEN` is set.
pub fn check_golden(name: &str, text: &str) {
    let path = golden_path(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(golden, text, "{name} differs; UPDATE_GOLDEN=1 rewrites it");
}
