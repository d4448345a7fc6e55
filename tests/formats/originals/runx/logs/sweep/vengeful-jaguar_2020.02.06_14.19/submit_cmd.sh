cd /home/logs/sweep/vengeful-jaguar_2020.02.06_14.19/code; PYTHONPATH=  python train.py --lr 0.02 --solver adam --logdir /home/logs/sweep/vengeful-jaguar_2020.02.06_14.19 
