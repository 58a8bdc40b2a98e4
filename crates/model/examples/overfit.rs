//! A small GPT learns one sentence by heart, byte by byte, by plain gradient descent, and says it.
//!
//! `cargo run --release -p model --example overfit`

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use model::{Batch, Config, Cpu, Decoder, Dimensions, Error, Gpt, Purpose};

const TEXT: &[u8] = b"a house has floors; imports point down. ";

fn main() -> Result<(), Error> {
    let time = TEXT.len() - 1;
    let config = Config::new(Dimensions {
        vocabulary: 128,
        context: time,
        channels: 32,
        layers: 2,
        heads: 4,
    })?;
    let batch = Batch { rows: 1, time };
    let mut gpt = Gpt::new(Cpu::<f32>::new(), config, batch, Purpose::Training)?;
    let mut parameters = gpt.layout().initial(1);
    let mut gradients = vec![0.0; parameters.len()];
    println!("{} parameters", parameters.len());

    let ids: Vec<u32> = TEXT.iter().map(|&byte| byte.into()).collect();
    gpt.upload(&ids[..time], &ids[1..], 1.0 / time as f32)?;
    for update in 1..=300 {
        gpt.forward_backward(&parameters, &mut gradients, false)?;
        for (parameter, gradient) in parameters.iter_mut().zip(&gradients) {
            *parameter -= 0.1 * gradient;
        }
        if update % 100 == 0 {
            println!("update {update}: {:.4} nats", gpt.loss()?.mean());
        }
    }

    let mut decoder = Decoder::new(Cpu::<f32>::new(), config)?;
    let mut said = vec![TEXT[0]];
    while said.len() < time {
        let logits = decoder.step(&parameters, u32::from(said[said.len() - 1]))?;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        said.push(best.expect("there are logits") as u8);
    }
    println!("{}", String::from_utf8_lossy(&said));
    assert_eq!(said, TEXT[..time]);
    Ok(())
}
