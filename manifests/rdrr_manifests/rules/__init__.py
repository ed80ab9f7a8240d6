"""The validation rules, one function each; all of them run, and every fault is reported.

There are three levels: rules of the structure need only the manifest, rules on files need the store
that contains the package, and deep rules read every byte. docs/SPEC.md lists the rules with their
reasons.
"""

from rdrr_manifests.rules.check import Examination, examine
from rdrr_manifests.rules.subject import Finding, Rule, Subject
from rdrr_manifests.rules.table import STRUCTURE

__all__ = ["STRUCTURE", "Examination", "Finding", "Rule", "Subject", "examine"]
