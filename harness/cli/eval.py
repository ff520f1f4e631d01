"""`bench eval`: any model on any tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.console import print_json
from harness.cli.options import HomeOption, JsonOption, PluginOption, TrustOption, whole_numbers, words
from harness.cli.report import list_runs
from harness.cli.verb import added
from harness.errors import RefusedError, note
from harness.evaluate.probe import StatementProbe
from harness.runs import home_folder, sweeps_holding, use_recorded_plugins
from harness.words import said

if TYPE_CHECKING:
    from harness.evaluate.suite import Suite, SuiteResult
    from harness.plan.subject import Subject
    from harness.sampling.sampler import EngineSampler, Policy


def eval_(
    model: Annotated[
        str,
        typer.Argument(help=said("cli.help_eval_model")),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="A,B",
            help=said("cli.help_eval_tasks"),
        ),
    ] = None,
    lm_eval: Annotated[
        str | None,
        typer.Option(
            "--lm-eval",
            metavar="A,B",
            help=said("cli.help_eval_lm_eval"),
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", metavar="MODEL", help=said("cli.help_eval_baseline")),
    ] = None,
    memorisation: Annotated[
        bool,
        typer.Option("--memorisation", help=said("cli.help_eval_memorisation")),
    ] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="P",
            help=said("cli.help_eval_preset"),
        ),
    ] = None,
    problems: Annotated[
        int | None, typer.Option("--problems", metavar="N", min=1, help=said("cli.help_eval_problems"))
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", metavar="N", min=1, help=said("cli.help_eval_samples")),
    ] = None,
    k: Annotated[str | None, typer.Option("--k", metavar="1,8", help=said("cli.help_eval_k"))] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", metavar="T", min=0, help=said("cli.help_eval_temperature"))
    ] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", metavar="P", min=0, max=1, help=said("cli.help_eval_top_p"))
    ] = None,
    max_completion_tokens: Annotated[
        int | None,
        typer.Option("--max-completion-tokens", metavar="N", min=1, help=said("cli.help_eval_max_completion_tokens")),
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", metavar="NAME", help=said("cli.help_eval_template"))
    ] = None,
    grader: Annotated[
        str | None,
        typer.Option("--grader", metavar="NAME", help=said("cli.help_eval_grader")),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help=said("cli.help_eval_seed"))] = None,
    thinking_budget: Annotated[
        str | None,
        typer.Option(
            "--thinking-budget",
            metavar="N,M",
            help=said("cli.help_eval_thinking_budget"),
        ),
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option("--include-path", metavar="DIR", help=said("cli.help_eval_include_path"))
    ] = None,
    apply_chat_template: Annotated[
        bool, typer.Option("--apply-chat-template", help=said("cli.help_eval_apply_chat_template"))
    ] = False,
    engine: Annotated[str, typer.Option("--engine", metavar="E", help=said("cli.help_eval_engine"))] = "auto",
    device: Annotated[str, typer.Option("--device", metavar="D", help=said("cli.help_eval_device"))] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", metavar="T", help=said("cli.help_eval_dtype"))] = "auto",
    regrade: Annotated[bool, typer.Option("--regrade", help=said("cli.help_eval_regrade"))] = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", help=said("cli.help_eval_allow_code"))] = False,
    plugin: PluginOption = None,
    trust_code: TrustOption = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate any model: pass@k, avg@n and more; keep every sample.

    The same command continues where it stopped. With more --samples or --problems it draws only what is missing.
    Without --tasks, a cell is evaluated as in its sweep, and samples that it already has are not drawn again.

    Example: bench eval runs/std_norm/cells/no_std-s0-1f2e3d4c5b --tasks arithmetic --samples 16 --temperature 1
    """
    from harness.evaluate.convention import OWN_PRESET, Convention, own_spec
    from harness.evaluate.suite import LmEvaluation, Suite
    from harness.plan.subject import find_subject

    cells = [Path(name) for name in (model, baseline) if name is not None]
    use_recorded_plugins(sweeps_holding(cells), plugin or [])
    # Without --tasks and --lm-eval, a cell is evaluated as its sweep did.
    own = tasks is None and lm_eval is None
    if tasks is None and not own:
        _refuse_unheeded(
            "--tasks; the files of lm-eval's tasks say how they are run",
            {
                "--preset": preset,
                "--samples": samples,
                "--k": k,
                "--temperature": temperature,
                "--top-p": top_p,
                "--template": template,
                "--grader": grader,
                "--thinking-budget": thinking_budget,
                "--regrade": regrade or None,
                "--memorisation": memorisation or None,
            },
        )
    if lm_eval is None:
        _refuse_unheeded(
            "--lm-eval", {"--include-path": include_path, "--apply-chat-template": apply_chat_template or None}
        )
    if regrade and (memorisation or lm_eval):
        raise RefusedError("cli.regrade_with_drawing")
    if top_p == 0:
        raise RefusedError("cli.top_p_zero")

    preset = preset or (OWN_PRESET if own else "greedy")
    subject = find_subject(model, engine, device, dtype, as_trained=preset == OWN_PRESET)
    if own and subject.cell is None:
        raise RefusedError("cli.nothing_to_evaluate")
    names = own_spec(subject).eval.tasks if own else words("--tasks", tasks)
    convention = Convention.named(preset, subject).changed(
        problems=problems,
        samples=samples,
        ks=whole_numbers("--k", k) if k is not None else None,
        temperature=temperature,
        top_p=top_p,
        max_completion_tokens=max_completion_tokens,
        template=template,
        grader=grader,
        seed=seed,
    )
    budgets = [None] if thinking_budget is None else whole_numbers("--thinking-budget", thinking_budget)
    foreign = LmEvaluation(
        words("--lm-eval", lm_eval),
        documents=problems,
        max_gen_toks=max_completion_tokens,
        include_path=include_path,
        apply_chat_template=apply_chat_template,
        seed=convention.seed,
    )
    probe = next(added(StatementProbe), None) if memorisation else None
    if memorisation and probe is None:
        raise RefusedError("cli.memorisation_not_available")

    subjects = [subject]
    if baseline is not None:
        # Both models run as the cell was trained, so that only the weights differ.
        if preset == OWN_PRESET:
            engine, device, dtype = subject.spec.rollout.engine, subject.spec.train.device, subject.spec.model.dtype
        # The baseline comes first, so that changes read from it to the model.
        subjects.insert(0, find_subject(baseline, engine, device, dtype))
    lm_eval_tasks = foreign if foreign.tasks else None
    suites = [
        Suite(one, convention.evaluations(one, names, budgets, allow_code), lm_eval_tasks, probe, max_completion_tokens)
        for one in subjects
    ]
    folder = home_folder(home)
    results = [_run(suite, folder, convention.seed, regrade) for suite in suites]
    _write_samples(results, convention.seed)
    for result in results:
        _log(result, folder)
    _show(results, folder, json)
    list_runs(folder)


def _refuse_unheeded(needed: str, options: dict[str, object]) -> None:
    """Raise RefusedError for options that have no effect without the `needed` one."""
    if unheeded := [option for option, value in options.items() if value is not None]:
        raise RefusedError("cli.options_without_effect", options=", ".join(unheeded), needed=needed)


def _run(suite: Suite, home: Path, seed: int, regrade: bool) -> SuiteResult:
    """Run what is asked of one model, after warnings about it."""
    from harness.cli.live import Countdown

    if suite.subject.moves:
        note(f"warning: {suite.subject.spec.model.source} can change under the same name; pin it with @<revision>")
    for warning in dict.fromkeys(f"{one.conditions.task.name}: {one.warning}" for one in suite.tasks if one.warning):
        note(f"warning: {warning}")
    _note_overlap(suite)
    return suite.run(
        home,
        None if regrade else _policy(suite.subject, seed),
        lambda stage: Countdown(stage, unit="sample").tell,
        note,
    )


def _log(result: SuiteResult, home: Path) -> None:
    """Log the results to MLflow; they are saved already, so a server that does not answer only causes a warning."""
    from harness.tracking import MirrorError, log_evaluation, log_lm_eval, tracking_uri

    try:
        for document in result.evaluations:
            log_evaluation(tracking_uri(home), home, result.label, document)
        for path in result.lm_eval_files:
            log_lm_eval(tracking_uri(home), home, result.label, path)
    except MirrorError as error:
        note(f"warning: {error}")


def _write_samples(results: list[SuiteResult], seed: int) -> None:
    """Write a page to read samples on for each task of each model, and one for all of lm-eval's tasks.

    A baseline's samples are shown next to those of the model.
    """
    from reports.samples import write_evaluation_samples, write_lm_eval_samples

    for place in range(len(results)):
        for number, document in enumerate(results[place].evaluations):
            beside = {one.label: Path(one.evaluations[number]["path"]) for one in results[: place + 1]}
            write_evaluation_samples(document["task"], seed, beside, Path(document["path"]))
        folders = {one.label: one.lm_eval_folder for one in results[: place + 1] if one.lm_eval_folder is not None}
        if folders:
            write_lm_eval_samples(seed, folders, folders[results[place].label])


def _show(results: list[SuiteResult], home: Path, json: bool) -> None:
    """Print the model's results, after those of the baseline if there is one."""
    from dataclasses import asdict

    from harness.cli.eval_tables import print_changes, print_suite
    from harness.evaluate.suite import paired_changes
    from reports.thinking_budget import write_thinking_budgets

    *baselines, result = results
    figures = [write_thinking_budgets(one.label, one.evaluations, home / "evals" / one.label) for one in results]
    changes = [paired_changes(baseline, result) for baseline in baselines]
    if json:
        document = result.as_json()
        for baseline, found in zip(baselines, changes, strict=True):
            document |= {"baseline": baseline.as_json(), "changes": [asdict(change) for change in found]}
        print_json(document)
        return
    for one, figure in zip(results, figures, strict=True):
        print_suite(one, figure)
    for baseline, found in zip(baselines, changes, strict=True):
        print_changes(baseline.label, result.label, found)


def _policy(subject: Subject, seed: int) -> Policy:
    """Return a function that loads the model on its first call, when the first sample is needed."""
    from functools import cache

    @cache
    def make() -> EngineSampler:
        note(f"loading {subject.label}")
        from harness.models.start import StartingPoint
        from harness.run.checkpoint_cell import load_as_it_is
        from harness.sampling.sampler import EngineSampler

        language_model = load_as_it_is(subject.spec, StartingPoint())
        for remark in language_model.remarks():
            note(remark)
        # The evaluation's seed, which may differ from that of the cell's training.
        return EngineSampler.of(subject.spec.model_copy(update={"seed": seed}), language_model)

    return make


def _note_overlap(suite: Suite) -> None:
    """Print how much of each task the training prompts of a cell contain; those of other models are unknown."""
    subject = suite.subject
    if subject.checkpoint is None:
        return
    from evals.contamination import overlap
    from harness.run.data_checks import contamination_sentence, overlap_row, training_texts

    for task, problems in {e.conditions.task.name: e.problems for e in suite.tasks}.items():
        found = overlap(training_texts(subject.spec), ((problem.id, problem.problem) for problem in problems))
        note(contamination_sentence(overlap_row(task, found)))
