"""The style sheet of the HTML reports."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --page: #f7f7f5; --card: #ffffff; --ink: #1d2126; --soft: #5c6670; --rule: #e0e1dc; --grid: #ecede8;
  --golden: #2f6db3; --band: #2f6db333; --check: #d1640a; --fail: #d8352a26; --open: #d9a40033; --changed: #8a5cd626;
  --first: #d8352a; --delta: #2f9e5a1f;
  --pass-ink: #17693a; --pass-bg: #dff3e6; --fail-ink: #a51d14; --fail-bg: #fbe2df; --odd-ink: #7a5600;
  --odd-bg: #fbefcf; }
@media (prefers-color-scheme: dark) { :root {
  --page: #15181c; --card: #1d2127; --ink: #e6e8ea; --soft: #9aa4ae; --rule: #323840; --grid: #2a2f36;
  --golden: #74aef0; --band: #74aef038; --check: #ff9d4d; --fail: #ff5a4d2e; --open: #e9bc3a2b; --changed: #b692ff2b;
  --first: #ff7468; --delta: #4fd08524;
  --pass-ink: #83dba4; --pass-bg: #193826; --fail-ink: #ff9a91; --fail-bg: #4a1d1a; --odd-ink: #f0cd6d;
  --odd-bg: #443612; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; display: flex; gap: 14px; align-items: center; flex-wrap: wrap; }
h2 { font-size: 19px; margin: 40px 0 4px; display: flex; gap: 12px; align-items: center; flex-wrap: wrap; }
h3 { font-size: 15px; margin: 28px 0 10px; }
p { margin: 4px 0; } .soft { color: var(--soft); } code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
.badge { display: inline-block; padding: 1px 10px; border-radius: 99px; font-size: 13px; font-weight: 650;
  letter-spacing: .02em; white-space: nowrap; background: var(--odd-bg); color: var(--odd-ink); }
.badge.PASS { background: var(--pass-bg); color: var(--pass-ink); }
.badge.FAIL, .badge.ERROR { background: var(--fail-bg); color: var(--fail-ink); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.scroll { overflow-x: auto; padding: 4px 0; margin-top: 12px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; } td.num, th.num { text-align: right; white-space: nowrap; }
td { overflow-wrap: anywhere; } td.key { color: var(--soft); white-space: nowrap; width: 1%; overflow-wrap: normal; }
tr.head td { border-bottom: 0; padding-bottom: 0; overflow-wrap: normal; }
tr.why td { padding-top: 2px; font-size: 14px; }
tr.why div { position: sticky; left: 10px; max-width: min(100%, calc(100vw - 72px)); width: fit-content; }
tr.pass.why { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 16px; }
figure { margin: 0; } figcaption { display: flex; gap: 10px; align-items: center; margin-bottom: 6px; flex-wrap: wrap; }
figcaption .right { margin-left: auto; }
svg { width: 100%; height: auto; display: block; }
svg .grid { stroke: var(--grid); } svg .tick { fill: var(--soft); font-size: 11px; } svg .note { fill: var(--soft); }
svg path { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .golden { stroke: var(--golden); stroke-width: 5; opacity: .6; } svg .check { stroke: var(--check); }
svg .again { opacity: .55; }
svg .band { fill: var(--band); stroke: var(--band); stroke-width: 3; }
svg .fail { fill: var(--fail); } svg .open { fill: var(--open); } svg .changed { fill: var(--changed); }
svg .delta { fill: var(--delta); } svg .first { stroke: var(--first); stroke-dasharray: 3 3; }
svg .hover { fill: transparent; } svg .hover:hover { fill: var(--band); }
.legend { display: flex; gap: 6px 20px; flex-wrap: wrap; color: var(--soft); font-size: 13px; margin: 10px 0 0; }
.legend i { display: inline-block; width: 22px; height: 10px; margin-right: 7px; border-radius: 2px; }
.legend i.line { height: 2px; vertical-align: 3px; } .legend i.wide { height: 5px; opacity: .6; }
details { margin-top: 18px; } summary { cursor: pointer; font-weight: 600; }
ul.said { margin: 10px 0; padding-left: 20px; } footer { margin-top: 48px; color: var(--soft); font-size: 13px; }
@media print { body { background: #fff; } .card { break-inside: avoid; } }
"""
