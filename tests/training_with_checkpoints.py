"""A training that writes a checkpoint after every step, and prints which steps it computed: no step should be lost, and
none computed twice if a checkpoint holds it. With `--hold 3` it waits after three steps to be ended."""

from __future__ import annotations

from pathlib import Path

TRAIN = """\
import argparse, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--out"); parser.add_argument("--init"); parser.add_argument("--until", type=int, default=12)
parser.add_argument("--die-at", type=int, default=0); parser.add_argument("--fail-at", type=int, default=0); parser.add_argument("--pause", type=float, default=0)
parser.add_argument("--hold", type=int, default=0); parser.add_argument("--damages", default=""); parser.add_argument("--code", type=int, default=0); parser.add_argument("--keeps", type=int, default=1)
args = parser.parse_args()
out, now = pathlib.Path(args.out), 0
(out / "ckpt").mkdir(exist_ok=True)
if args.init:
    text = pathlib.Path(args.init).read_text()
    assert text.endswith("whole"), f"{args.init} is damaged"
    now = int(text.split()[0])

begun = now

def save(*_):
    whole = "cut" if str(now) in args.damages.split(",") and not args.init else "whole"
    (out / "ckpt/new.tmp").write_text(f"{now} {whole}")
    os.replace(out / "ckpt/new.tmp", out / f"ckpt/step-{now}.pt")

def leave(*_):
    if args.keeps: save()
    print("left", flush=True)
    sys.exit(args.code)

signal.signal(signal.SIGUSR1, leave)
while now < args.until:
    time.sleep(args.pause)
    now += 1
    with (out / "computed.txt").open("a") as file:
        file.write(f"{now}\\n")
    print(f"step {now} loss {1 / now}", flush=True)
    if args.fail_at == now:
        sys.exit(3)
    if args.die_at and not args.init and now == args.die_at:
        os.kill(os.getsid(0), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if args.keeps: save()
    if args.hold and now % args.hold == 0 and now < args.until and now > begun:
        print("holds", flush=True)
        while True: signal.pause()
"""

STUDY = """\
study: long
command: python3 train.py --out {{run.dir}} {words} [init]
metrics: {{step: 'step (\\d+)', loss: 'loss ({{number}})'}}
resume: {{param: init, files: 'ckpt/*.pt'}}
{more}
"""


def write_study(folder: Path, words: str, more: str = "") -> Path:
    (folder / "train.py").write_text(TRAIN)
    (folder / "s.yml").write_text(STUDY.format(words=words, more=more))
    return folder / "runs/long/run"


def load_steps(run_dir: Path) -> list[int]:
    return [int(line) for line in (run_dir / "computed.txt").read_text().split()]
