//! Parts of tensors end with the bits of whole ones: every format, cut at borders of blocks, on the CPU and on a
//! CUDA device.

use std::ops::Range;

use formats::Format;
use optimizer::{
    AdamW, BiasChoice, CpuAdamW, DecodedMoments, Error, Group, OnNonfinite, Options, SavedState,
    SharedAdamW, TensorSpec,
};

use crate::equality::OPTIONS;
use crate::pair::{group, noise, specs};

const LENGTHS: [usize; 5] = [70_001, 5000, 100, 0, 33_000];
const CHUNK: usize = 16_384;

/// What holds parts: an optimizer with its memory.
trait Rank {
    fn measure(&mut self, update: u64, gradients: &[f32]);
    fn measured(&mut self) -> Option<Vec<f64>>;
    fn set_measured(&mut self, numbers: &[f64]);
    fn update(&mut self);
    fn spreads(&mut self) -> Option<Vec<f64>>;
    fn set_spreads(&mut self, numbers: &[f64]);
    fn finish(&mut self);
    fn parameters(&self) -> Vec<f32>;
    fn report(&mut self) -> optimizer::Report;
    fn save(&self) -> SavedState<'static>;
    fn load(&mut self, state: &SavedState<'_>);
}

struct OnCpu {
    optimizer: CpuAdamW,
    parameters: Vec<f32>,
    gradients: Vec<f32>,
}

impl Rank for OnCpu {
    fn measure(&mut self, update: u64, gradients: &[f32]) {
        self.optimizer.set_update(update, &[1e-2]).unwrap();
        self.gradients = gradients.to_vec();
        self.optimizer.measure(&self.gradients, None).unwrap();
    }
    fn measured(&mut self) -> Option<Vec<f64>> {
        self.optimizer.measured().map(|numbers| numbers.to_vec())
    }
    fn set_measured(&mut self, numbers: &[f64]) {
        self.optimizer.measured().unwrap().copy_from_slice(numbers);
    }
    fn update(&mut self) {
        self.optimizer.update_parts(&mut self.parameters, &self.gradients).unwrap();
    }
    fn spreads(&mut self) -> Option<Vec<f64>> {
        self.optimizer.spreads().map(|numbers| numbers.to_vec())
    }
    fn set_spreads(&mut self, numbers: &[f64]) {
        self.optimizer.spreads().unwrap().copy_from_slice(numbers);
    }
    fn finish(&mut self) {
        self.optimizer.finish().unwrap();
    }
    fn parameters(&self) -> Vec<f32> {
        self.parameters.clone()
    }
    fn report(&mut self) -> optimizer::Report {
        self.optimizer.report().unwrap()
    }
    fn save(&self) -> SavedState<'static> {
        self.optimizer.save().unwrap().into_owned()
    }
    fn load(&mut self, state: &SavedState<'_>) {
        self.optimizer.load(state).unwrap();
    }
}

/// Makes a rank from its parts and their parameters.
type RankOf<'a> = &'a dyn Fn(&[TensorSpec], Group, Vec<f32>) -> Box<dyn Rank>;

/// Ranks side by side, each with the part of every tensor that lies between its borders.
struct Ranks {
    ranks: Vec<Box<dyn Rank>>,
    ranges: Vec<Vec<Range<usize>>>,
}

/// The elements of each rank's parts of a flat buffer of whole tensors.
fn gathered(flat: &[f32], ranges: &[Range<usize>]) -> Vec<f32> {
    let mut first = 0;
    let mut own = Vec::new();
    for (range, length) in ranges.iter().zip(LENGTHS) {
        own.extend_from_slice(&flat[first + range.start..first + range.end]);
        first += length;
    }
    own
}

/// What `count` ranks have of a tensor, cut at multiples of `border`; later ranks have less.
fn ranges(count: usize, border: usize) -> Vec<Vec<Range<usize>>> {
    let cut = |length: usize, rank: usize| {
        let cut = length * rank * (2 * count - rank) / (count * count);
        if rank == count { length } else { cut / border * border }
    };
    let range = |rank| move |length| cut(length, rank)..cut(length, rank + 1);
    (0..count).map(|rank| LENGTHS.map(range(rank)).to_vec()).collect()
}

impl Ranks {
    fn new(group: Group, ranges: Vec<Vec<Range<usize>>>, rank_of: RankOf<'_>) -> Ranks {
        let whole = specs(&LENGTHS.map(|length| (length, 0)));
        let parameters = noise(LENGTHS.iter().sum(), 1000, 1.0);
        let rank = |own: &Vec<Range<usize>>| {
            let parts = TensorSpec::parts(&whole, |position, _| own[position].clone());
            rank_of(&parts, group, gathered(&parameters, own))
        };
        Ranks { ranks: ranges.iter().map(rank).collect(), ranges }
    }

    fn step(&mut self, update: u64, gradients: &[f32]) {
        for (rank, own) in self.ranks.iter_mut().zip(&self.ranges) {
            rank.measure(update, &gathered(gradients, own));
        }
        let measured: Vec<_> = self.ranks.iter_mut().map(|rank| rank.measured()).collect();
        if let Some(sum) = sum(measured) {
            self.ranks.iter_mut().for_each(|rank| rank.set_measured(&sum));
        }
        self.ranks.iter_mut().for_each(|rank| rank.update());
        let spreads: Vec<_> = self.ranks.iter_mut().map(|rank| rank.spreads()).collect();
        if let Some(sum) = sum(spreads) {
            self.ranks.iter_mut().for_each(|rank| rank.set_spreads(&sum));
        }
        self.ranks.iter_mut().for_each(|rank| rank.finish());
    }

    /// The parameters of whole tensors.
    fn parameters(&self) -> Vec<f32> {
        let mut whole = Vec::new();
        let mut rests: Vec<Vec<f32>> = self.ranks.iter().map(|rank| rank.parameters()).collect();
        for position in 0..LENGTHS.len() {
            for (rest, own) in rests.iter_mut().zip(&self.ranges) {
                whole.extend(rest.drain(..own[position].len()));
            }
        }
        whole
    }

    fn save(&self) -> SavedState<'static> {
        let states: Vec<_> = self.ranks.iter().map(|rank| rank.save()).collect();
        SavedState::join(&states).unwrap()
    }
}

/// The sums over all ranks; all have some, or none has.
fn sum(numbers: Vec<Option<Vec<f64>>>) -> Option<Vec<f64>> {
    let all: Option<Vec<Vec<f64>>> = numbers.into_iter().collect();
    all?.into_iter().reduce(|sum, own| sum.iter().zip(own).map(|(a, b)| a + b).collect())
}

/// The same updates of whole tensors and of 1 to 5 ranks, whose state goes on in other parts after the second.
#[track_caller]
fn check(group: Group, options: Options, border: usize, counts: Range<usize>, rank_of: RankOf<'_>) {
    let what = group.format;
    let elements = LENGTHS.iter().sum();
    let whole = specs(&LENGTHS.map(|length| (length, 0)));
    for count in counts {
        let mut expected = noise(elements, 1000, 1.0);
        let mut optimizer = CpuAdamW::new(&whole, &[group], options).unwrap();
        let mut ranks = Ranks::new(group, ranges(count, border), rank_of);
        for update in 1..=4 {
            let mut gradients = noise(elements, update, 1e-1);
            gradients[1000..3000].fill(0.0);
            if update == 4 {
                gradients[CHUNK + 5] = f32::NAN;
            }
            optimizer.set_update(update, &[1e-2]).unwrap();
            optimizer.step(&mut expected, &gradients).unwrap();
            ranks.step(update, &gradients);
            let found = ranks.parameters();
            assert_eq!(reference::first_difference(&found, &expected), None, "{what} {count}");
            let saved = optimizer.save().unwrap();
            let joined = ranks.save();
            assert_eq!(joined, saved, "{what} {count} {update}");
            let report = optimizer.report().unwrap();
            let own: Vec<_> = ranks.ranks.iter_mut().map(|rank| rank.report()).collect();
            assert_eq!(own.iter().map(|own| own.nonfinite).sum::<u64>(), report.nonfinite);
            let first = own.iter().find_map(|own| own.first_nonfinite);
            assert_eq!(first, report.first_nonfinite);
            let scales = own.iter().all(|own| own.clip_scale == report.clip_scale);
            assert!(scales && own.iter().all(|own| own.skipped == report.skipped));
            if options.clip_norm.is_some() {
                assert!(own.iter().all(|own| own.gradient_norm == report.gradient_norm));
            }
            if update == 2 {
                // The parameters of other parts come from the whole ones.
                let rank_of = |parts: &[TensorSpec], group: Group, _: Vec<f32>| {
                    let ranges = parts.iter().map(|part| {
                        let start = part.part.unwrap().start as usize;
                        start..start + part.length
                    });
                    let own = gathered(&expected, &ranges.collect::<Vec<_>>());
                    let mut rank = rank_of(parts, group, own);
                    rank.load(&joined);
                    rank
                };
                ranks = Ranks::new(group, ranges(count % 3 + 1, border), &rank_of);
            }
        }
    }
}

fn cpu(options: Options) -> impl Fn(&[TensorSpec], Group, Vec<f32>) -> Box<dyn Rank> {
    move |parts, group, parameters| {
        let optimizer = CpuAdamW::new(parts, &[group], options).unwrap();
        Box::new(OnCpu { optimizer, parameters, gradients: Vec::new() })
    }
}

fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().chain(OPTIONS.iter().map(|text| text.parse().unwrap()))
}

#[test]
fn any_cut_at_borders_of_blocks_has_the_bits_of_the_whole() {
    for format in formats() {
        let border = format.block_elements() as usize;
        let options = Options { seed: 77, ..Options::default() };
        check(group(format), options, border, 1..6, &cpu(options));
    }
}

#[test]
fn clipping_holding_and_biases_go_by_all_parts() {
    for format in formats() {
        let group = Group { bias: BiasChoice::Auto, ..group(format) };
        let clipped = Options { clip_norm: Some(1.0), ..Options::default() };
        let holding = Options { on_nonfinite: OnNonfinite::Hold, ..clipped };
        for options in [clipped, holding] {
            check(group, options, CHUNK, 1..4, &cpu(options));
        }
    }
}

#[test]
fn a_loss_that_is_not_finite_on_one_rank_holds_all() {
    let options = Options { on_nonfinite: OnNonfinite::Hold, ..Options::default() };
    let whole = specs(&[(2 * CHUNK, 0)]);
    let mut ranks = [0, 1].map(|rank| {
        let parts = TensorSpec::parts(&whole, |_, _| rank * CHUNK..(rank + 1) * CHUNK);
        CpuAdamW::new(&parts, &[group(Format::E4)], options).unwrap()
    });
    let before = vec![1.0; CHUNK];
    for (update, loss) in [(1, f64::NAN), (2, 1.0)] {
        for (rank, loss) in ranks.iter_mut().zip([loss, 1.0]) {
            rank.set_update(update, &[1e-2]).unwrap();
            rank.measure(&vec![0.5; CHUNK], Some(&loss)).unwrap();
        }
        let sums = sum(ranks.iter_mut().map(|rank| Some(rank.measured()?.to_vec())).collect());
        for rank in &mut ranks {
            rank.measured().unwrap().copy_from_slice(sums.as_ref().unwrap());
            let mut parameters = before.clone();
            rank.update_parts(&mut parameters, &vec![0.5; CHUNK]).unwrap();
            rank.finish().unwrap();
            assert_eq!(parameters, before);
            assert!(rank.report().unwrap().skipped);
        }
    }
}

#[test]
fn moments_are_stored_in_parts_as_in_the_whole() {
    let elements: usize = LENGTHS.iter().sum();
    let (m, root) = (noise(elements, 1, 1e-2), noise(elements, 2, 1e-1));
    let v: Vec<f32> = root.iter().map(|root| root * root).collect();
    let whole = specs(&LENGTHS.map(|length| (length, 0)));
    let options = Options { seed: 77, ..Options::default() };
    for format in formats() {
        let group = group(format);
        let mut optimizer = CpuAdamW::new(&whole, &[group], options).unwrap();
        let mut first = 0;
        for (position, length) in LENGTHS.into_iter().enumerate() {
            let own = first..first + length;
            let moments = DecodedMoments { m: m[own.clone()].to_vec(), v: v[own].to_vec() };
            optimizer.set_moments(position, 5, &moments).unwrap();
            first += length;
        }
        let ranges = ranges(3, format.block_elements() as usize);
        let moments_of = |own: &[Range<usize>], position: usize| {
            let first: usize = LENGTHS[..position].iter().sum();
            let own = first + own[position].start..first + own[position].end;
            DecodedMoments { m: m[own.clone()].to_vec(), v: v[own].to_vec() }
        };
        let mut ranks: Vec<CpuAdamW> = ranges
            .iter()
            .map(|own| {
                let parts = TensorSpec::parts(&whole, |position, _| own[position].clone());
                CpuAdamW::new(&parts, &[group], options).unwrap()
            })
            .collect();
        for position in 0..LENGTHS.len() {
            // What each rank adds to the first sum, and to the second, where the first is known.
            let mut sums: Vec<Vec<f64>> = Vec::new();
            for round in 0..=2 {
                let mut found: Vec<Vec<f64>> = Vec::new();
                for (rank, own) in ranks.iter_mut().zip(&ranges) {
                    let mut fresh = rank.clone();
                    let mut calls = 0;
                    let moments = moments_of(own, position);
                    let done: Result<(), Error> =
                        fresh.set_moments_shared(position, 5, &moments, |numbers| {
                            match sums.get(calls) {
                                Some(sum) => numbers.copy_from_slice(sum),
                                None if calls == round => found.push(numbers.to_vec()),
                                None => {}
                            }
                            calls += 1;
                            Ok(())
                        });
                    done.unwrap();
                    if round == 2 {
                        *rank = fresh;
                    }
                }
                sums.extend(sum(found.into_iter().map(Some).collect()));
            }
        }
        let states: Vec<_> = ranks.iter().map(|rank| rank.save().unwrap().into_owned()).collect();
        assert_eq!(SavedState::join(&states).unwrap(), optimizer.save().unwrap(), "{format}");
    }
}

#[test]
fn a_scale_of_all_parts_is_not_made_of_one() {
    let whole = TensorSpec::new("w", 70_000, 0);
    let part = whole.part(0, 0, 0, 256);
    let group = group("ustate1q".parse().unwrap());
    let mut optimizer = CpuAdamW::new(&[part], &[group], Options::default()).unwrap();
    let moments = DecodedMoments { m: vec![0.0; 256], v: vec![0.0; 256] };
    let error = optimizer.set_moments(0, 1, &moments).unwrap_err().to_string();
    assert!(error.contains("the scale of its first moments is that of all parts"), "{error}");
}

#[test]
fn whole_tensors_keep_random_words_of_their_place() {
    // One tensor alone, told where it stands, draws what it drew among others.
    let whole = specs(&[(5000, 0), (6000, 0)]);
    let groups = [group("ustate1q".parse().unwrap())];
    let mut all = CpuAdamW::new(&whole, &groups, Options::default()).unwrap();
    let one = whole[1].part(1, 1, 0, 6000);
    let mut alone = CpuAdamW::new(&[one], &groups, Options::default()).unwrap();
    let (mut parameters, gradients) = (noise(11_000, 1, 1.0), noise(11_000, 2, 1e-2));
    let mut own = parameters[5000..].to_vec();
    for _ in 0..3 {
        all.set_next_update().unwrap();
        all.step(&mut parameters, &gradients).unwrap();
        alone.set_next_update().unwrap();
        alone.step(&mut own, &gradients[5000..].to_vec()).unwrap();
    }
    assert_eq!(own, parameters[5000..]);
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let whole = TensorSpec::new("w", 70_000, 0);
    let refused = |part: TensorSpec, group: Group, options: Options| {
        CpuAdamW::new(&[part], &[group], options).unwrap_err().to_string()
    };
    let (block8, plain) = (group("block8".parse().unwrap()), Options::default());
    let part = |start, length| whole.part(0, 0, start, length);
    let begins = "tensor \"w\": expected a part to begin and end at multiples of";
    assert_eq!(
        refused(part(100, 156), block8, plain),
        format!("{begins} 256 elements, the elements of a block; found a border at 100")
    );
    assert_eq!(
        refused(part(256, 300), block8, plain),
        format!("{begins} 256 elements, the elements of a block; found a border at 556")
    );
    let clipped = Options { clip_norm: Some(1.0), ..plain };
    assert_eq!(
        refused(part(256, 256), block8, clipped),
        format!(
            "{begins} 16384 elements, as the gradient norm that clips is added up; found a border at 256"
        )
    );
    let auto = Group { bias: BiasChoice::Auto, ..group(Format::E4) };
    assert!(refused(part(5, 256), auto, plain).contains("gradients that choose a bias"));
    assert_eq!(
        refused(part(69_888, 113), block8, plain),
        "tensor \"w\": expected a part of 70000 elements, found 113 elements from 69888 on"
    );
    let skipping = Options { on_nonfinite: OnNonfinite::Skip, ..plain };
    assert!(refused(part(0, 256), block8, skipping).contains("expected on_nonfinite stop or hold"));
    let twice = [part(0, 256), TensorSpec { name: "x".to_owned(), ..part(256, 256) }];
    let error = CpuAdamW::new(&twice, &[block8], plain).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"x\": expected one part of every whole tensor, found another of tensor 0"
    );
}

#[test]
fn steps_alone_and_stages_in_another_order_are_refused() {
    let whole = TensorSpec::new("w", 70_000, 0);
    let part = || whole.part(0, 0, 0, 256);
    let (mut parameters, gradients) = (vec![1.0; 256], vec![0.5; 256]);
    let ustate = group("ustate1q".parse().unwrap());
    let mut optimizer = CpuAdamW::new(&[part()], &[ustate], Options::default()).unwrap();
    optimizer.set_next_update().unwrap();
    let error = optimizer.step(&mut parameters, &gradients).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"w\" is a part, and the scale of its first moments is that of all parts; expected a \
         shared step, found one alone"
    );
    let order = "expected the stages of a shared step in the order measure, update, finish; found";
    let error = optimizer.update_parts(&mut parameters, &gradients).unwrap_err();
    assert_eq!(error.to_string(), format!("{order} update before measure"));
    let error = optimizer.finish().unwrap_err();
    assert_eq!(error.to_string(), format!("{order} finish before update"));
    // A part of a format without scales for whole tensors needs nobody.
    let block8 = group("block8".parse().unwrap());
    let mut optimizer = CpuAdamW::new(&[part()], &[block8], Options::default()).unwrap();
    optimizer.set_next_update().unwrap();
    optimizer.step(&mut parameters, &gradients).unwrap();
    let mut optimizer = CpuAdamW::new(&[whole], &[block8], Options::default()).unwrap();
    optimizer.set_next_update().unwrap();
    let error = optimizer.measure(&vec![0.0; 70_000], None).unwrap_err();
    assert!(error.to_string().starts_with("expected tensors that are parts of others"), "{error}");
}

#[test]
fn a_state_of_other_parts_is_refused() {
    let whole = specs(&[(1024, 0)]);
    let groups = [group("block8:min=0".parse().unwrap())];
    let new = |range: Range<usize>| {
        let parts = TensorSpec::parts(&whole, |_, _| range.clone());
        CpuAdamW::new(&parts, &groups, Options::default()).unwrap()
    };
    let (mut first, second) = (new(0..512), new(512..1024));
    let saved = second.save().unwrap().into_owned();
    let error = first.load(&saved).unwrap_err().to_string();
    let expected = "saved state: expected t0.part \"0..512 of 1024\", found \"512..1024 of 1024\"";
    assert!(error.starts_with(expected), "{error}");
    let mut all = CpuAdamW::new(&whole, &groups, Options::default()).unwrap();
    let error = all.load(&saved).unwrap_err().to_string();
    assert!(error.contains("expected t0.part \"none of a whole tensor\""), "{error}");
    let error = SavedState::join(std::slice::from_ref(&saved)).unwrap_err().to_string();
    assert_eq!(
        error,
        "saved state: array \"t0.m_codes\": expected the parts of 1024 elements once each, found none \
         that begins at 0"
    );
    assert!(SavedState::join(&[saved.clone(), saved]).is_err());
    assert!(SavedState::join(&[]).is_err());
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use gpu_kernels::Buffer;
    use optimizer::CudaAdamW;

    use super::*;
    use crate::emulator::device;

    struct OnCuda {
        optimizer: CudaAdamW,
        parameters: Buffer<f32>,
        gradients: Buffer<f32>,
    }

    impl Rank for OnCuda {
        fn measure(&mut self, update: u64, gradients: &[f32]) {
            self.optimizer.set_update(update, &[1e-2]).unwrap();
            self.gradients.upload(gradients).unwrap();
            self.optimizer.measure(&self.gradients, None).unwrap();
        }
        fn measured(&mut self) -> Option<Vec<f64>> {
            self.optimizer.measured().map(|numbers| numbers.to_vec().unwrap())
        }
        fn set_measured(&mut self, numbers: &[f64]) {
            self.optimizer.measured().unwrap().upload(numbers).unwrap();
        }
        fn update(&mut self) {
            self.optimizer.update_parts(&mut self.parameters, &self.gradients).unwrap();
        }
        fn spreads(&mut self) -> Option<Vec<f64>> {
            self.optimizer.spreads().map(|numbers| numbers.to_vec().unwrap())
        }
        fn set_spreads(&mut self, numbers: &[f64]) {
            self.optimizer.spreads().unwrap().upload(numbers).unwrap();
        }
        fn finish(&mut self) {
            self.optimizer.finish().unwrap();
        }
        fn parameters(&self) -> Vec<f32> {
            self.parameters.to_vec().unwrap()
        }
        fn report(&mut self) -> optimizer::Report {
            self.optimizer.report().unwrap()
        }
        fn save(&self) -> SavedState<'static> {
            self.optimizer.save().unwrap().into_owned()
        }
        fn load(&mut self, state: &SavedState<'_>) {
            self.optimizer.load(state).unwrap();
        }
    }

    #[test]
    fn any_cut_has_the_bits_of_the_whole_on_a_device() {
        let Some(device) = device() else { return };
        let gpu = device.gpu();
        for (number, format) in formats().enumerate() {
            let plain = Options { seed: 77, ..Options::default() };
            let clipped = Options { clip_norm: Some(1.0), ..plain };
            let holding = Options { on_nonfinite: OnNonfinite::Hold, ..clipped };
            let automatic = Group { bias: BiasChoice::Auto, ..group(format) };
            let border = format.block_elements() as usize;
            let cases = [
                (group(format), plain, border),
                (automatic, holding, CHUNK),
                (automatic, clipped, CHUNK),
            ];
            for (group, options, border) in cases {
                let rank_of = |parts: &[TensorSpec], group: Group, parameters: Vec<f32>| {
                    let optimizer = CudaAdamW::new(&gpu, parts, &[group], options).unwrap();
                    let (length, parameters) = (parameters.len(), gpu.upload(&parameters).unwrap());
                    let gradients = gpu.zeros(length).unwrap();
                    Box::new(OnCuda { optimizer, parameters, gradients }) as Box<dyn Rank>
                };
                // Kernels are compiled for every format, which takes its time; all counts come in turn.
                let first = 1 + number % 5;
                check(group, options, border, first..first + 1, &rank_of);
            }
        }
    }
}
