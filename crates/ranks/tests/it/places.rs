//! Where a process stands, by the variables of each launcher.

use ranks::{Error, Place};

fn place(variables: &[(&str, &str)]) -> Result<Option<Place>, Error> {
    let get = |name: &str| {
        let found = variables.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Place::from_variables(&get)
}

fn found(variables: &[(&str, &str)]) -> Place {
    place(variables).unwrap().expect("the process has a place")
}

const TORCHRUN: [(&str, &str); 6] = [
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "n1"),
    ("MASTER_PORT", "29400"),
];

#[test]
fn torchrun() {
    let expected = Place {
        rank: 5,
        world_size: 8,
        local_rank: 1,
        local_world_size: Some(4),
        master_host: "n1".into(),
        master_port: 29_400,
    };
    assert_eq!(found(&TORCHRUN), expected);
    assert_eq!(expected.master(), "n1:29400");
    // Its agent has the port itself.
    let agent = [&TORCHRUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
    assert_eq!(found(&agent).master_port, 22_400);
}

#[test]
fn open_mpi() {
    let mut variables = vec![
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    let own = found(&variables);
    assert_eq!((own.rank, own.local_rank, own.master()), (1, 1, "127.0.0.1:29500".into()));
    variables[3].1 = "1";
    let message = place(&variables).unwrap_err().to_string();
    assert!(message.contains("without MASTER_ADDR") && message.contains("mpirun -x"), "{message}");
    variables.push(("MASTER_ADDR", "fe80::1"));
    assert_eq!(found(&variables).master(), "[fe80::1]:29500");
}

#[test]
fn slurm() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "16"), ("SLURM_JOB_ID", "9012")];
    assert_eq!(place(&batch).unwrap(), None, "a batch script is alone");
    let step = [
        ("SLURM_PROCID", "9"),
        ("SLURM_STEP_NUM_TASKS", "16"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NTASKS_PER_NODE", "8(x2)"),
        ("SLURM_STEP_NODELIST", "gpu-[07,09]"),
        ("SLURM_JOB_ID", "9012"),
    ];
    let own = found(&step);
    assert_eq!((own.rank, own.world_size, own.local_rank), (9, 16, 1));
    assert_eq!((own.local_world_size, own.master()), (None, "gpu-07:20012".into()));
}

#[test]
fn no_variables_and_a_world_of_one_are_alone() {
    assert_eq!(place(&[]).unwrap(), None);
    assert_eq!(place(&[("RANK", "0"), ("WORLD_SIZE", "1")]).unwrap(), None);
    assert_eq!(place(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]).unwrap(), None);
}

#[test]
fn variables_that_do_not_suffice() {
    for (variables, expected) in [
        (&[("WORLD_SIZE", "2")][..], "WORLD_SIZE is set without RANK"),
        (&[("RANK", "0")], "RANK is set without WORLD_SIZE"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "RANK is set without MASTER_ADDR"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "n1")],
            "RANK is set without MASTER_PORT",
        ),
        (
            &[("RANK", "2"), ("WORLD_SIZE", "2")],
            "RANK: expected less than WORLD_SIZE, which is 2, found `2`",
        ),
        (&[("RANK", "x"), ("WORLD_SIZE", "2")], "RANK: expected a whole number, found `x`"),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "RANK: expected less than WORLD_SIZE, which is 0"),
    ] {
        let error = place(variables).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
}
