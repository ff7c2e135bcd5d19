"""The page of a check: self-contained, without a library."""

from html import escape

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 } th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #ddd }
.passed { color: #17692f } .failed { color: #a40000; font-weight: bold } .skipped { color: #666 }
"""


def page(found):
    """The HTML of what a check has found so far (what check.json holds)."""
    machine, parts = found["machine"], found["parts"]
    sizes = "tiny sizes: this tries only the check itself" if found["tiny"] else "full shapes"
    body = [f"<h1>parascale on {escape(', '.join(sorted(set(machine['gpus']))) or 'CPUs')}</h1><p>{sizes}</p>"]
    body.append(_table([{"": key, "value": value} for key, value in machine.items()]))
    for name, part in parts.items():
        status = f'<span class="{part["status"]}">{part["status"]}</span>'
        body.append(f"<h2>{escape(name)}: {status}</h2>")
        body.append(f"<p>{escape(part['title'])}; {part['ranks']} processes, {part['seconds']:.0f} s</p>")
        if part.get("message"):
            body.append(f"<p>{escape(part['message'])}</p>")
        body.append(_table(part.get("rows", ())))
    head = f'<meta charset="utf-8"><title>parascale check gpu</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{"".join(body)}</body></html>\n'


def _table(rows):
    """A table of all the columns that any row has."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if not columns:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(_text(row.get(column)))}</td>" for column in columns) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>\n"


def _text(value):
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
