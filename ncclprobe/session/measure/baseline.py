"""What this run is compared with: its own fingerprint, and the site's baseline of such machines."""

from collections.abc import Mapping

from ncclprobe.expect import baselines
from ncclprobe.expect.baselines import load, same_machine, unknown_parts
from ncclprobe.model.measurement import Fingerprint, changes
from ncclprobe.model.snapshot import Snapshot
from ncclprobe.session.measure.fingerprint import of_facts
from ncclprobe.session.measure.recorder import Recorder

_MOST_NAMED = 4


def record_fingerprint(recorder: Recorder, path: str | None, snapshot: Snapshot) -> None:
    """Record on which machine the run is measured, and judge it by the baseline at `path`, if one fits.

    Raises UsageError for a baseline that cannot be read.
    """
    found = of_facts(snapshot.facts, recorder.participants.versions, recorder.participants.backend)
    recorder.fingerprint(found)
    if path:
        compare_with(recorder, load(path), path, found)


def compare_with(recorder: Recorder, sites: Mapping[str, baselines.Site], path: str, mine: Fingerprint) -> None:
    """Judge by the baseline in `sites` that is of this machine, or say why there is none: no baseline is no pass."""
    fits = {name: site for name, site in sites.items() if same_machine(site.print(), mine)}
    nameless = {name: site for name, site in sites.items() if site.fingerprint is None}
    if not fits and len(sites) == len(nameless) == 1:
        fits = nameless
        recorder.note(f"{path} does not say of which machine it is, so a change of the machine cannot be seen")
    if not fits:
        differs = "; ".join(changes(next(iter(sites.values())).print(), mine)[:_MOST_NAMED])
        of = f": {differs} (baseline -> now)" if len(sites) == 1 and differs else ""
        recorder.note(f"no baseline: {path} holds none of this machine{of}")
        return
    newest = max(fits, key=lambda name: fits[name].written)
    site = fits[newest]
    recorder.expect(baselines.bands(site, newest))
    changed = changes(site.print(), mine)
    if changed:
        recorder.note(f"changed since the baseline {newest} was taken: {'; '.join(changed[:_MOST_NAMED])}")
    silent = unknown_parts(site.print(), mine)
    if silent and site.fingerprint:
        recorder.note(f"the baseline {newest} and this run do not both say: {', '.join(silent[:_MOST_NAMED])}")
