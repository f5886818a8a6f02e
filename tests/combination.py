"""An algorithm with settings, given by the names of their options."""

import inspect

from lit_fed.settings import model_settings
from lit_fed.wrappers.compatibility import facts_of_data

OF_DATA = inspect.signature(facts_of_data).parameters


def refuse(algorithm, **options):
    """Refuse what does not go together; options are settings of the model and facts of the data."""
    data = {name: options.pop(name) for name in OF_DATA if name in options}
    model_settings(algorithm=algorithm, **options).check_combination(**data)


def surrounded(algorithm, **options):
    """The algorithm inside the wrappers of these settings."""
    return model_settings(algorithm=algorithm, **options).wrapped


def option(settings, name):
    """The value of an option of the model; None for those of a feature that was not given."""
    owners = [one for one in (settings, *settings.features) if hasattr(one, name)]
    return getattr(owners[0], name) if owners else None
